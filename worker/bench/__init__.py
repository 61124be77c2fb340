"""Measurements without a run: rounds of the exchange, and steps of the engine."""
