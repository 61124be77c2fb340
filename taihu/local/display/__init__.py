"""The display of a run on this machine: a live line, plain lines, and what its coordinator tells."""
