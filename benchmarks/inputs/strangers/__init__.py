"""A job beside strangers who send what nobody can read: `python -m benchmarks strangers`."""
