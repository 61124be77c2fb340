"""Hosts, machines and rows that benchmarks stand on."""
