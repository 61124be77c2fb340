"""Faults: kills, containers, ends, and what the explorer finds."""
