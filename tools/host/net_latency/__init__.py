"""net_latency: measure connections of a target: round trips, losses, limits, and what threads wait for on them."""
