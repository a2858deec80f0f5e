"""Splitting a model over ranks: the mesh, and one file per axis with a function applied to a model."""
