"""Agents: processes that run the workers which a run assigns to their machines, and that come and go."""
