"""The tool known_fix: known defects of the versions of a host and a job, and the versions that fix them."""
