"""The tool cluster_topology: hosts, GPUs, NICs and the ranks on them, and ranks that run far from their GPU or NIC."""
