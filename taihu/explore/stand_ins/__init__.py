"""Stand-ins for what a process gets from Python and its machine: threads, locks, clocks, randomness."""
