"""A run as a chain of Slurm jobs, one for each group of stages that the same processes train."""
