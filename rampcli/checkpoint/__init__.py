"""Checkpoints: saving, loading, and their files. Only `manifest` and `compatibility` need no torch."""
