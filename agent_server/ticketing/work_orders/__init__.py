"""Work orders from elsewhere: read within bounds, filed as tickets, once each."""
