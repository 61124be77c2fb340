"""The server daemon: aggregation, optimizer shard, and the service around them."""
