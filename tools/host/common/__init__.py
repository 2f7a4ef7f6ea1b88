"""Code shared by the tools that judge a recording of one host."""
