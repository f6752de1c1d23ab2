"""The MCP server: recall, notes and runs for any program that speaks the Model Context Protocol."""
