"""Who is on call at a given time, and who gets a ticket: pure calculations on what the settings say."""
