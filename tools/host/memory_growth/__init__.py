"""memory_growth: which processes and cgroups grow, how fast, and when they reach a limit."""
