"""The backend of torch.distributed, beside Gloo, and against oracles."""
