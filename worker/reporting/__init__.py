"""Reports of a run while it goes on: metrics, logs, and the files of steps and tests."""
