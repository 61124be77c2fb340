"""Long runs, in rooms; rows are committed in benchmarks/results, tables in docs. See `python -m benchmarks`."""
