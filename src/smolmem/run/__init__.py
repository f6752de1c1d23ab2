"""4: from a stored run back to a living one."""
