"""`taihu plan`: `command.py` is its command."""
