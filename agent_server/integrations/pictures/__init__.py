"""Diagnoses as pictures that a chat can show."""
