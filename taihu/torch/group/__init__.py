"""A group of processes as torch.distributed wants it, over taihu's connections and shared memory."""
