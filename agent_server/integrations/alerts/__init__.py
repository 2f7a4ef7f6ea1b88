"""Alerts of others: read, routed by a tree, silenced, grouped, and made tickets of."""
