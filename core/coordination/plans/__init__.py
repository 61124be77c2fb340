"""Plans of a run, from what its workers measure, and the choice of its compression: pure."""
