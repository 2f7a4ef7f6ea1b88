"""Tickets: what they hold, how they change, and where they are kept."""
