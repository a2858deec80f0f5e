"""Runs as a chain of Slurm jobs, one for each group of stages with the same processes."""

FOLDER = "slurm"
"""Folder in the run directory for job scripts and jobs.json."""
