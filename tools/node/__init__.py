"""The node that processes run on, from wherever we run ourselves: its mounts, control groups, containers and pods."""
