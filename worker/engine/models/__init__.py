"""Models by name, by the user's own function, and by their definition in a file."""
