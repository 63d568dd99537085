"""Rules about gates."""
