"""Put a profile onto the clock of a scheduling trace, and check the result."""
