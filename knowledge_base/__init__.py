"""Causes, past incidents, diagnoses and tickets: what is known, what was found, and how one resembles the other."""
