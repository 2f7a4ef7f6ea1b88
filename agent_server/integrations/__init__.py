"""Connections to other systems: alert senders, chats, issue trackers, the jobs of this host."""
