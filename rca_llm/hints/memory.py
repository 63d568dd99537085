"""Rules about memory."""
