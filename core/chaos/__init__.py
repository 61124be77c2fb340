"""Faults of processes: asked for in the job, or made up by a seed; the run has to stand them."""
