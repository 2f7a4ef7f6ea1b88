"""The Recording format, and the Window that runs collectors and fills it."""
