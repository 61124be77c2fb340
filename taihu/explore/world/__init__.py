"""A simulated world: the real daemons' processes, whoever supervises them, and what happens to them.

Modules here import the daemons. They are imported after `loading.Simulation` was installed.
"""
