"""Benchmarks on real servers: ``python -m bench NAME [--json] [--rows N] [--cases a,b]``."""
