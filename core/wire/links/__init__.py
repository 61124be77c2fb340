"""The ways of frames between two members: streams of gRPC, connections beside them, shared memory."""
