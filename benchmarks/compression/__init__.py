"""Steps with compressed gradients."""
