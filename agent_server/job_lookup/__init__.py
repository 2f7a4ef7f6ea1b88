"""From what people call a job to its processes on this host."""
