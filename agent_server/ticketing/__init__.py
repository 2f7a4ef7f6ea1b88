"""Tickets, work orders, their classification, and who is on call."""
