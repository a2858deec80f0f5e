"""Splits a model over ranks. One file per axis holds the functions that are applied to a model."""
