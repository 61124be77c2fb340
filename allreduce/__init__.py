"""Exchange between workers without servers: ring allreduce, sparse allreduce, and peers that share a host."""
