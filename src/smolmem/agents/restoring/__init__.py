"""The variables of a killed agent, without repeating what its code did."""
