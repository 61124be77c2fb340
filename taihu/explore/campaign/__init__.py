"""Exploring: seeds, the processes that explore them, judges, and what is left of a failing seed."""
