"""Groups of settings, as the package `rampcli.conf` for Hydra's `pkg://rampcli.conf`."""
