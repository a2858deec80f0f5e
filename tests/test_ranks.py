"""Ranks that a fault ends."""

import os
import signal
from pathlib import Path

import pytest

from ranks import run_ranks, stop_ranks


def fault_once(folder: str) -> int:
    """Ends this process with a fault, in the first of all calls; returns its id in later ones."""
    marker = Path(folder, "called")
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return os.getpid()


def test_a_fault_in_a_new_rank_fails_and_says_where_it_was(tmp_path):
    stop_ranks()
    with pytest.raises(AssertionError, match=r"(?s)rank_0.txt, ended with -11: .* in fault_once"):
        run_ranks(1, fault_once, str(tmp_path), logs=tmp_path / "logs")


def test_after_a_fault_in_a_rank_that_has_served_before_new_ranks_are_called(tmp_path):
    (served,) = run_ranks(1, os.getpid, logs=tmp_path / "logs")
    with pytest.warns(UserWarning, match="a rank that had served before"):
        (found,) = run_ranks(1, fault_once, str(tmp_path), logs=tmp_path / "logs")
    assert found != served
