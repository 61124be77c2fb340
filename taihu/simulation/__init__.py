"""A whole job on a virtual clock: the daemons' own decisions, beside a model of the network and one of compute."""
