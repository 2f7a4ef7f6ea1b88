"""Pages and drawings from columns. Pure: nothing is read, nothing is judged."""
