"""The commands. Each has a file of its own, with its options and what it does.

`main` imports all of these files. So they import at their top only what options need, and the rest
when the command runs: `--help` is fast, and imports neither torch, hydra nor rich.
"""
