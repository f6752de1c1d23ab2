"""Vector indexes outside of the store, each behind the same small protocol."""
