"""Trains on this machine, which emulates all nodes of a stage."""

from rampcli.plugins.launchers import Declaration

DECLARATION = Declaration(about="on this machine, one stage after another", supports_elastic=True)
