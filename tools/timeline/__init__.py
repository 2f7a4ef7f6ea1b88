"""Models, readers and writers of traces and profiles; clocks and their alignment. Nothing is judged here."""
