"""Training with little memory: activations are computed again when backward needs them."""
