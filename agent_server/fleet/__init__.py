"""Ask many hosts, each of which runs ``whystall serve``, and merge their answers."""
