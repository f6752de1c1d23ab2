"""From question to context: what is searchable, how it is found, and how it is shown to a model."""
