"""Calls of the coordinator as values: asked and answered, over gRPC and in this process."""
