"""The worker daemon: engine, data, exchange, trainer."""

__distribution__ = "taihu"
