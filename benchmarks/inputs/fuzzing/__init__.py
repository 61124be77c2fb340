"""Targets of fuzzing, and how inputs are changed: shared by the tests and `python -m benchmarks fuzz`."""
