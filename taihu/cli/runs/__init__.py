"""Commands on runs, while they go on and afterwards."""
