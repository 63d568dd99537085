"""Tests against real engines, in an environment of their own (`make test-engines`)."""
