"""Models. They know no collectives: what splits them over ranks is in `rampcli.parallel`."""
