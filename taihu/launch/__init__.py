"""Places of processes that other launchers started: ranks, addresses, and the way to the coordinator."""
