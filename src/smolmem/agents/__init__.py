"""Everything that touches a live smolagents agent."""
