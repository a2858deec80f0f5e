"""Exports trained weights, imports foreign ones, and generates text."""
