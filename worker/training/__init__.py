"""The training loop, and what belongs to it: replicas, measuring, tests, stopping."""
