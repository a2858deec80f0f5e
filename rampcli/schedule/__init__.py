"""Learning rates over samples."""
