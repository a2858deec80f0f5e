"""Loads what ranks and commands need, in the process that they are forked from."""

import gc
import importlib
import io
import os
from contextlib import redirect_stdout

from rampcli.cli.main import app

# `start_process` has put the folder of this file in front, which is only for this process.
os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"].partition(os.pathsep)[2]
if not os.environ["PYTHONPATH"]:
    del os.environ["PYTHONPATH"]
# As in tests/conftest.py.
os.fsync = lambda _: None
for module in (
    "commands",
    "ranks",
    "rampcli.rl.assemble",
    # Commands import these when they need them.
    "rampcli.launch.doctor.machine",
    "rampcli.cli.progress",
    "rampcli.cli.training",
    "rampcli.cli.tune_search",
    "rampcli.machine.interpreter",
    "rampcli.weights.import_model",
    # Torch, NumPy and sockets import these when they are first used.
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
    "numpy.ma",
    "encodings.idna",
):
    importlib.import_module(module)
# A plan makes Typer load its types, Hydra its plugins and parser, and Rich its tables.
with redirect_stdout(io.StringIO()):
    app(["plan", "--factory", "llama3_tiny"], standalone_mode=False)
# Modules live until the end: no process needs to scan them for garbage, or to copy them for that.
gc.collect()
gc.freeze()
