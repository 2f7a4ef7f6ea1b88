"""flamegraph_diff: which functions make two profiles differ."""
