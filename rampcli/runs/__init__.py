"""What a run directory holds, and what it says about the run. No torch."""
