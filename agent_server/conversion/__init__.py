"""Capture and convert traces and stack samples between file formats."""
