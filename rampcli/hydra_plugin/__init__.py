"""The plugin of Hydra: `hydra_plugins` below is installed beside rampcli."""
