"""Checks whether this machine has what a launch needs, for `rampcli doctor`."""
