"""Splitting a model over ranks: the meshes, and one file per axis with functions applied to a model."""
