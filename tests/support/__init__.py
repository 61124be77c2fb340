"""Helpers of several tests: processes, networks, scenarios, strategies."""
