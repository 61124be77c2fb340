"""Long runs whose results are committed in docs/."""
