"""Everything that watches the training loop: the protocol is in `observer`."""
