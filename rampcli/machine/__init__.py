"""This machine and its processes: processors, GPUs, memory, network, the end of a parent."""
