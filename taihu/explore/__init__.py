"""The real daemons in one process, under every fault, replayed from a seed: `taihu dev explore`.

Threads are tasks of a seeded scheduler, time is virtual, the network and the disk are in memory. The daemons' code is
that of the daemons: modules are loaded with stand-ins for `threading`, `time`, `grpc` and their like (`loading`).
FoundationDB's and TigerBeetle's way of testing.
"""
