"""The training loop, its steps and its observers."""
