"""The SW26010 processor as a functional model: results tile by tile, and what they cost."""
