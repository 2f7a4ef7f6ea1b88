"""Read the traces of a job's ranks, local or remote, in parallel."""
