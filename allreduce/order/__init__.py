"""The order of operations: an operation, its turn, and frames that come before it."""
