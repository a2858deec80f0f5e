"""Checkpoints: saving and loading. `compatibility` and `starting_weights` need no torch."""
