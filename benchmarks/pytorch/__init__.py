"""PyTorch loops and scripts, beside others and against oracles."""
