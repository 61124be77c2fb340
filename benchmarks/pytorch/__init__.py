"""PyTorch loops and the backend of torch.distributed, beside others and against oracles."""
