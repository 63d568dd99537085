"""The commands of `rca-llm`, one module each; its `command` is what click runs."""
