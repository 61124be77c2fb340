"""Wrong changes to the daemons, by which the explorer is proved."""
