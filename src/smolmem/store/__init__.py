"""Events, runs, calls, notes and passages in a database."""
