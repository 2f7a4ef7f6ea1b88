"""hang: which rank of a running job the others wait for, where it is, and for what it waits."""
