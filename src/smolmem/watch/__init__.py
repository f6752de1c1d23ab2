"""5  Rules over steps."""
