"""The history of the watch: what jobs waited for over time, what changed, and two spans compared. Pure."""
