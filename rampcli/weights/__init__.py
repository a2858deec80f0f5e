"""Export, import and generate."""
