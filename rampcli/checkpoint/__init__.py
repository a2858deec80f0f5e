"""Checkpoints: saving, loading, and their files."""
