"""A run's processes on this machine: started, watched, replaced, and ended together."""
