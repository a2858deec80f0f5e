"""The program that each rank of a run executes."""
