"""A small real shop on the web, and the hands that run and break it."""
