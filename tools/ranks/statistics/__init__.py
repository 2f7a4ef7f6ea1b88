"""Exact probabilities and two-sample tests, without a numerical library."""
