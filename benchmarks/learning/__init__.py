"""Results of learning: accuracy, curves, models of the zoo."""
