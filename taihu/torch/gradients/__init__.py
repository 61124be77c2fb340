"""The gradients of a script: which are exchanged, in which order and memory, and their means."""
