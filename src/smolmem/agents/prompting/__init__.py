"""From the memory of an agent to the prompt that its model is sent."""
