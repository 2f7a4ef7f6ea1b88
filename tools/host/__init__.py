"""Tools that judge a recording of one host."""
