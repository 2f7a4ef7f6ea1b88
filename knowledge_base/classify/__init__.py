"""Which category, component and severity a ticket has, and why: rules, past incidents, then words."""
