"""memory_growth: which processes and cgroups grow, how fast, and until when."""
