"""The system as a process of taihu has it: threads, clocks, sockets, chance, signals, processes, memory.

Nothing else of taihu imports Python's modules for them (ruff holds it), so that `taihu dev explore` takes the place
of these few files. Names are bound to Python's own functions: a call from here costs no more than one from there.
"""
