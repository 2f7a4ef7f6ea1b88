"""heat_map: activity over time, and the periods in it."""
