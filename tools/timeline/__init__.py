"""Models, readers and writers of traces and profiles; clocks and how to align them. Nothing here judges."""
