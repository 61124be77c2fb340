"""Disks and shared memory of simulated processes, in memory: what of them is durable, and what faults they have."""
