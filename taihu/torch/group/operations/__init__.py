"""The operations of a group: their order, what each runs over, and the tensors that they take."""
