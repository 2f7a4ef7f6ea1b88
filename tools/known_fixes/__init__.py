"""Known defects of versions of kernels, drivers, libraries and frameworks, and the versions that fix them. Pure."""
