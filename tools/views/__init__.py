"""Columns in, one self-contained page out. Pure: nothing is read, nothing is judged."""
