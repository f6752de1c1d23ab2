"""Lists, steps and models of a live agent that report what happens to them."""
