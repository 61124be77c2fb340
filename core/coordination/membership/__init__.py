"""The members of a run, from the first that joins to the end: pure, time comes in as an argument."""
