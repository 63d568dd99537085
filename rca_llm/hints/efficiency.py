"""Rules about efficiency."""
