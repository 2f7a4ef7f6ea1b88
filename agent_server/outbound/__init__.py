"""HTTP requests to other servers: limited in time and size, retried, shown without secrets."""
