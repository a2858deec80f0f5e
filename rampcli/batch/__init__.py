"""Batch arithmetic: pure functions of numbers, exact, with neither torch nor hydra."""
