"""The fastest way to run a job on given machines: what may be tried, what is not worth trying, and what is best."""
