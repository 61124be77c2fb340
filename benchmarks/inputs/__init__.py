"""Inputs of strangers and users: frames, calls, tables, pictures, odd machines."""
