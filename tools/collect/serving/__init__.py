"""What inference servers state about their requests on a Prometheus endpoint."""
