"""The memory that a worker trains in: arenas, the pages behind them, and their first values."""
