"""Images of the user's own: decoded as a viewer shows them, and looked over before any is trained on."""
