"""The base of all rooms: errors, words, files that are whole or not there."""
