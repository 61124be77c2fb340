"""`taihu agent`: a process that runs the workers which a run assigns to this machine."""
