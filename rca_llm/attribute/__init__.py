"""From a trace to a partition of time: which part of which class each nanosecond belongs to."""
