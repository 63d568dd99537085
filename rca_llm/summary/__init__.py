"""The tables of the summary: one module for each kind of row."""
