"""Composes the settings of a run from conf/, a recipe and the command line, and checks them."""
