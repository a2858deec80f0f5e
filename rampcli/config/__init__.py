"""Settings: from conf/, a recipe and the command line to one typed configuration, checked before anything starts. No torch."""
