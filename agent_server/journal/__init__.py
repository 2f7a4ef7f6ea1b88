"""What must survive a crash: alerts that came, tasks to do, messages to send, and who changed what."""
