"""Find ranks that did not enter an operation that others wait in."""
