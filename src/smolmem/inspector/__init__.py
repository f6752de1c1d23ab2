"""The web page: everything that is in a file, to be looked at in a browser while agents are running."""
