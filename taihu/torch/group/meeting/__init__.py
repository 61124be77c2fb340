"""The members of a group find each other, before they are connected."""
