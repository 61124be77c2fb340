"""The beginning of a program, and the code of users that it imports."""
