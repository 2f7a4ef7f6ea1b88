"""What happens in the background of a server: tasks, deliveries, groups of alerts that are due."""
