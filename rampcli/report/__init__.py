"""What a person reads of a plan and of a run."""
