"""Servers that join a run, and leave it: each generation of its members has as many as are there."""
