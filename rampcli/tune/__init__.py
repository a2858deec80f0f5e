"""Finds the micro batches that this hardware can run, and those that it should run."""
