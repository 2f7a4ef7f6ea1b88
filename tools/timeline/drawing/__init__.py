"""Lanes, slices and flows of a trace, independent of the viewer's file format."""
