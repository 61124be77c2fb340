"""Processes of taihu: how each begins, takes options, and ends."""
