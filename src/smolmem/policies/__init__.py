"""Views, which choose what a model is shown, and rules, which watch steps."""
