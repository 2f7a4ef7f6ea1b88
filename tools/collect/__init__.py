"""Collectors: each attaches to one source and fills typed columns; none judges."""
