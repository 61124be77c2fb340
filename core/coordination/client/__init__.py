"""A member's side of the coordinator: how it asks, hears, waits, and shows that it lives."""
