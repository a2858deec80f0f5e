"""Launches a run as a chain of Slurm jobs, one per group of stages with the same processes."""

FOLDER = "slurm"
"""Folder in the run directory for job scripts and jobs.json."""
SEARCH = "tune"
"""Name of the job that searches for micro batch sizes, and its argument in place of stages."""
