"""The routes between workers without servers: around a ring, or from each to each when compressed."""
