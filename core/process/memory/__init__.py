"""Memory that a process has, may take, finds free, and shares by files."""
