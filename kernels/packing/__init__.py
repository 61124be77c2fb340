"""Selected positions and values as bytes, and back."""
