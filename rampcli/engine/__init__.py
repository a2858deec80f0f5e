"""Training on torch.distributed: one worker program for one process or many."""
