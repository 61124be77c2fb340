"""Backward passes of a script as steps of an exchange, and parameters that come back while it goes on."""
