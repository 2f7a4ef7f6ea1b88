"""The node, as seen from the host or a container: its mounts, control groups, containers and pods."""
