"""Tools that judge the ranks of one job against each other."""
