"""Rules about launch."""
