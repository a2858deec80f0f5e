"""Commands on a disk that is read-only or full: one message, and reading needs no writing."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from hostile.namespaces import leave_mounts
from model_folders import write_model
from recorded_runs import write_run
from tiny_runs import environment

PROGRAM = """
import contextlib, gc, io, json, sys
from rampcli.cli.main import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["rampcli", *words]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    gc.enable()
    print(json.dumps([words, code, out.getvalue(), err.getvalue()]))
"""
"""Runs commands in one process, and prints a line of JSON about each."""
TRAIN = ("--factory", "llama3_tiny", "trainer.accelerator=cpu", "trainer.max_steps=2")
READING = [
    ("status", "disk/run"),
    ("report", "disk/run"),
    ("report", "disk/run", "--json"),
    ("status", "disk"),
]
WRITING = [
    ("pretrain", *TRAIN, "run_dir=disk/new"),
    ("sweep", *TRAIN, "optim.lr=1e-3,2e-3", "run_dir=disk/sweep"),
    ("tune", *TRAIN, "run_dir=disk/tune"),
    ("tune", "--diagnose", *TRAIN, "run_dir=disk/tune"),
    ("report", "run", "--html", "disk/new.html"),
    ("import", "model", "disk/model/new.yaml"),
    ("data", "build", "a.txt", "--tokenizer", "bytes", "--output", "disk/corpus"),
]


READ_ONLY = "mount --bind disk disk && mount -o remount,bind,ro disk"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
@pytest.mark.parametrize(
    ("mount", "reads", "reason"),
    [
        (
            "cp -r run disk && mount --bind disk disk && mount -o remount,bind,ro disk",
            True,
            "read-only|Read-only",
        ),
        ("mount -t tmpfs -o size=12k none disk", False, "[Nn]o space left|cannot hold"),
    ],
)
def test_a_disk_that_cannot_be_written_is_named_in_one_message(tmp_path, mount, reads, reason):
    write_run(tmp_path / "run")
    write_model(tmp_path / "model")
    (tmp_path / "a.txt").write_text("some words " * 20_000, encoding="utf-8")
    (tmp_path / "disk").mkdir()
    commands = [*(READING if reads else []), *WRITING]
    program = shlex.join([sys.executable, "-P", "-c", PROGRAM, json.dumps(commands)])
    done = subprocess.run(
        ["sh", "-c", f"{mount} && exec {program}"],
        cwd=tmp_path,
        env=environment(),
        preexec_fn=leave_mounts,
        capture_output=True,
        text=True,
        check=True,
    )
    for line in done.stdout.splitlines():
        words, code, out, err = json.loads(line)
        if tuple(words) in READING:
            assert (code, err) == (0, ""), words
            continue
        assert code in (1, 2), (words, out, err)
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, (words, err)
        assert "Errno" not in err
        assert re.search(reason, errors[0]), words
