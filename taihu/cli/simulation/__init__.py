"""`taihu simulate`: `command.py` is its command."""
