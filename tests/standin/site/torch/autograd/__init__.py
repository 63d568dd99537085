"""The package of the profiler."""
