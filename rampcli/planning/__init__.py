"""From settings to the plan of a run. No torch."""
