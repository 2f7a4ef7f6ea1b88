"""hybrid_io_advise: buffered or direct I/O, per file."""
