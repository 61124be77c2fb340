"""A whole run on this machine: its processes, watched to the end."""
