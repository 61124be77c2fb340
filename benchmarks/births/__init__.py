"""Births of rows: the code, day and machine that each was measured with, and code that has changed since."""
