"""Tools that judge stack samples: flame graphs, their differences, heat maps."""
