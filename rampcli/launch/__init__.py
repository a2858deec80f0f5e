"""How workers start, stop and go on. No torch: the worker is named, not imported."""
