"""The recording format, and the window that runs collectors to fill it."""
