"""2: a record on disk."""
