"""How workers start, stop and resume. No torch: the worker is named, not imported."""
