"""Launches a run as a chain of Slurm jobs, one per group of stages with the same processes."""

from rampcli.launch.slurm.settings import SlurmConfig, check_elastic, check_names, check_words
from rampcli.launch.slurm.srun import SRUN
from rampcli.launchers import Declaration

DECLARATION = Declaration(
    about="in a chain of jobs, one wherever new processes start",
    section=SlurmConfig,
    checks=(check_elastic, check_names, check_words),
    starter=SRUN,
)
FOLDER = "slurm"
"""Folder in the run directory for job scripts and jobs.json."""
SEARCH = "tune"
"""Name of the job that searches for micro batch sizes, and its argument in place of stages."""
