"""From text to vectors: local models, servers and functions."""
