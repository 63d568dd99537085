"""The engine's package."""
