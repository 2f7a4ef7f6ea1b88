"""One module per group of commands; each has ``add(app)`` and is imported only for its commands."""
