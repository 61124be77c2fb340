"""Fully connected layers whose columns are spread over the workers (docs/methods.md section 3, and section 4)."""
