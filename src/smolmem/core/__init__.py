"""Values and pure functions: no I/O, nothing of a live agent."""
