"""Samples: their contents, their order, and which rank reads which of them."""
