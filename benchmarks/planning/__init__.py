"""Plans, searches and simulations beside what was measured and what papers say."""
