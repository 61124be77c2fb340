"""Mutation testing of the pure cores: `make mutants` (docs/adr/0030)."""
