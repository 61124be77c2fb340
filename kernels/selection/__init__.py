"""Selection of the largest values, and sums of such selections."""
