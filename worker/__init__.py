"""The worker daemon: engine, data, exchange, trainer."""
