"""What everything else stands on: errors, words, files that are whole or not there."""
