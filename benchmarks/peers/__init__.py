"""Other systems beside this one: the same gradients over the same links, in one run."""
