"""The critical batch of a run: branches that measure it, and a batch proposed from it."""
