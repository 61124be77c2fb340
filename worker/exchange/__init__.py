"""Exchanges of gradients for parameters: the interface, the state of a step, and the routes that values take."""
