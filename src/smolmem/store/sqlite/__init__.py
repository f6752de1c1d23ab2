"""The store in one SQLite file: opening, upgrading, encrypting and repairing it."""
