"""Sparse allreduce: messages from rank to rank, and three algorithms."""
