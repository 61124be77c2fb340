"""The base of the exchange: a route of its values, histories of them, updates of parameters."""
