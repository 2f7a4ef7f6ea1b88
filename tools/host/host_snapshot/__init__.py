"""host_snapshot: an overview of a host from the kernel's counters."""
