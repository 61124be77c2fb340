"""Channels, servers and pages, who may call them, and how many that say nothing."""
