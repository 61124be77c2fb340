"""Figures of the papers beside what the simulator says; their claims and constants are in docs/methods.md."""
