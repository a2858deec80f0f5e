"""Passes the metrics of a run on to trackers. No torch."""
