"""net_latency: connections of a target: round trips, losses, what limits them, and what threads wait for on them."""
