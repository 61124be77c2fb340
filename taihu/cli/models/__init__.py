"""Commands on models and data."""
