"""From a question to a context."""
