"""A job as Kubernetes objects: pure, plain dictionaries as the API takes them."""
