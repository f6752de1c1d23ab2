"""Erasing: rows, contents, prompts and variables are gone from the file."""
