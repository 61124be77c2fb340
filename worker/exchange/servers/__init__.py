"""The route through parameter servers."""
