import os
import sys
from contextlib import ExitStack

import pytest

from rampcli.files.locks import hold
from rampcli.files.locks import is_held as is_really_held
from rampcli.runs.directory import RunDirectory
from rampcli.worker import __main__ as worker
from rampcli.worker import assemble


@pytest.mark.parametrize("others_train", [False, True])
def test_a_waiting_worker_compiles_ahead_only_while_others_train(
    others_train, tmp_path, monkeypatch
):
    """Its turn may come late on a busy machine, also if it is the first."""
    compiled = []
    monkeypatch.setattr(assemble, "compile_next_stage", lambda run, **_: compiled.append(run))
    run = RunDirectory(tmp_path)
    reading, writing = os.pipe()

    def is_held(path):
        os.write(writing, b"5.5\n")  # the turn comes after the worker has found none
        return is_really_held(path)

    monkeypatch.setattr(worker, "is_held", is_held)
    with ExitStack() as opened:
        monkeypatch.setattr(sys, "stdin", opened.enter_context(os.fdopen(reading)))
        opened.callback(os.close, writing)
        if others_train:
            opened.enter_context(hold(run.workers_lock, shared=True))
        assert worker.wait_for_turn(run, lambda: None) == 5.5
    assert compiled == ([run] if others_train else [])
