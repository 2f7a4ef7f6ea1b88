"""Requests to the servers of others: bounded, repeated with patience, shown without their secrets."""
