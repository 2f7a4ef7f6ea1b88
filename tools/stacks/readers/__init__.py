"""Readers of stack sample formats, one module each."""
