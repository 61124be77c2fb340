"""Data of the user's own: arrays, images, tables, text, and what a function returns."""
