"""Sizes, operations and memory of a model, computed from its settings. No torch."""
