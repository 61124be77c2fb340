"""Allreduce in memory that the workers of one machine share."""
