"""Checkpoints: saving and loading. Of its modules, `manifest` and `compatibility` need no torch."""
