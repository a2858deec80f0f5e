"""Starts, stops and resumes workers. Imports no torch: workers are separate processes."""
