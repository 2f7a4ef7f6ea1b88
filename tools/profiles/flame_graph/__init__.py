"""flame_graph: which frames of a profile take how much."""
