"""Who is on call at a given time, and who gets a ticket: pure functions of the settings."""
