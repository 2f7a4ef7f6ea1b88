"""gpu_health: errors of GPUs, links, memory and ports, by the kernel log, NVML and the host's counters."""
