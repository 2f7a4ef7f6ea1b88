"""What hosts, GPUs and NICs are connected by: readers of `nvidia-smi topo -m`, lstopo's XML, sysfs and NVML."""
