"""Models. They use no collectives; `rampcli.parallel` splits them over ranks."""
