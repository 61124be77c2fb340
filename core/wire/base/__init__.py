"""Addresses, clocks, patience, statuses: what both ends of calls and connections need."""
