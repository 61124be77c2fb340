"""The coordinator where it is hosted: what threads share, answers, checkpoints, those who come and go."""
