"""host_bound: why an accelerator waits for the host."""
