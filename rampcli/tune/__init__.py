"""Finds the micro batches that fit this hardware, and the one to use."""
