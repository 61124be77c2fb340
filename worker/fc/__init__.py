"""Fully connected layers whose columns are spread over the workers (methods sections 3 and 4)."""
