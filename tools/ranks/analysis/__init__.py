"""What is derived from a job before it is judged: steps, waits, ranks that do the same work."""
