"""Pure decisions: which layers are merged, who owns what, and the shapes of well-known models."""
