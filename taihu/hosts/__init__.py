"""The processes of a run on several hosts, which ssh reaches."""
