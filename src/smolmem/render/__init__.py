"""Values as terminal output, plain text and JSON, for every face."""
