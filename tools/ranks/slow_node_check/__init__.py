"""The tool slow_node_check: which rank holds the job back, why, and what it costs."""
