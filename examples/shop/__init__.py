"""A small web shop, and the program that runs and breaks it."""
