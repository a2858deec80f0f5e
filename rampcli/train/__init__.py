"""The training loop, its steps, and what observes them."""
