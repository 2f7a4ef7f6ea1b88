"""Repeatable measurements, each beside a named peer in the same run: ``python -m benchmarks.run``."""
