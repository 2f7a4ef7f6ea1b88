"""One rank's profile reduced to the tables that tools over ranks read."""
