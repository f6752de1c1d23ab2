"""The inspector: a local web page that shows everything in a memory file, also while agents are running."""
