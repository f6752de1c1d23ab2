"""1: an agent's step becomes a record."""
