"""Parts that are looked up by name: of users, of optional packages, launchers and trackers."""
