"""A script of the user's in several processes on this machine, life after life."""
