"""Export and import in an open format."""
