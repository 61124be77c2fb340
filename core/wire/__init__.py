"""The network: codec, channels, servers, errors as statuses, retry, metrics, logs."""
