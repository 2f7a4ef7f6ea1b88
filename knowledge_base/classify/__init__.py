"""Classification of tickets by category, component and severity: rules, past incidents, then words."""
