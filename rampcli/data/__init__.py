"""Samples: what they hold, in which order they come, and who reads which."""
