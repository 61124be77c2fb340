"""Collective operations around a ring."""
