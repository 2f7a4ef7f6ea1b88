"""Open what a caller names as input: recordings, traces, profiles, stack samples, the ranks of a job."""
