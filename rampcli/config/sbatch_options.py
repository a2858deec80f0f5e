"""Options of sbatch that would break a chain of jobs, in every spelling that sbatch's getopt_long takes."""

import re

FORBIDDEN = {
    "array": "each of its jobs is a single one",
    "chdir": "a job is found again by its folder",
    "clusters": "a job is found again on the cluster that the commands ask",
    "dependency": "each job waits for the one before it",
    "hold": "only its first job would be released",
    "job-name": "a job is found again by its name",
    "nodes": "trainer.num_nodes says how many nodes a stage has",
    "no-requeue": "a job goes back into the queue at its time limit",
    "ntasks": "trainer.devices says how many processes a node has",
    "ntasks-per-node": "trainer.devices says how many processes a node has",
    "open-mode": "a job that was requeued adds to its log",
    "parsable": "sbatch is asked for it already",
    "signal": "launch.grace_s says when a job is asked to save",
    "tasks-per-node": "trainer.devices says how many processes a node has",
    "test-only": "sbatch would submit nothing",
    "uid": "a job is found again by its user",
    "wait": "sbatch would wait for a job that is held",
    "wrap": "the script of a job is that of the chain",
}
"""Long names, and why a chain cannot have them."""
_SHORT = {
    "a": "array",
    "d": "dependency",
    "D": "chdir",
    "H": "hold",
    "J": "job-name",
    "M": "clusters",
    "n": "ntasks",
    "N": "nodes",
    "W": "wait",
}
_WITHOUT_VALUE = "hHOQsvVW"
_OPTION = re.compile(r"--[^\s=-][^\s=]*(=.*)?|-[^\s-].*")


def is_option(word: str) -> bool:
    """Whether sbatch could take a word as an option, or as several short ones. A long option has its value behind `=`."""
    return word.isprintable() and _OPTION.fullmatch(word) is not None


def forbidden_option(word: str) -> str | None:
    """Returns the long name of the first forbidden option in a word, or None.

    A long option may be cut short as long as only one option begins so. Which others there are depends on Slurm's version, so every
    beginning of a forbidden name counts. sbatch refuses those that are not unique. No allowed option's whole name is among them.
    """
    if word.startswith("--"):
        typed = word[2:].partition("=")[0]
        return (
            typed
            if typed in FORBIDDEN
            else next((name for name in FORBIDDEN if name.startswith(typed)), None)
        )
    for letter in word[1:]:
        if letter in _SHORT:
            return _SHORT[letter]
        if letter not in _WITHOUT_VALUE:  # the rest is its value
            return None
    return None
