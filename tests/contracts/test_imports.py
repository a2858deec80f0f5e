import json
import subprocess
import sys
from pathlib import Path

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.run import write_run_files
from rampcli.planning.resolve import resolve
from rampcli.plugins.launchers import LAUNCHERS
from rampcli.runs.directory import RunDirectory
from tiny_runs import TINY, environment

# Modules that only commands or other settings need.
UNNEEDED = {
    *(
        "hydra",
        "typer",
        "click",
        "rich",
        "jinja2",
        "matplotlib",
        "transformers",
        "pyarrow",
        "pandas",
        "hypothesis",
        "tensorboard",
    ),
    *(
        "torch.distributed.pipelining",
        "torch.distributed.run",
        "torch.distributed.launcher",
        "torch.testing._internal.common_utils",
    ),
    *(
        "torch._inductor.compile_fx",
        "rampcli.cli",
        "rampcli.report",
        "rampcli.config.compose",
        "rampcli.planning.resolve",
        "rampcli.data.building",
    ),
}
SLOW = {
    *("torch", "numpy", "tokenizers", "hydra", "omegaconf", "antlr4", "pydantic", "jinja2"),
    *("importlib.metadata", "asyncio", "logging", "rich.progress"),
}
"""Modules that short commands need only for certain words."""
PROBE = """
import json, sys
from rampcli.cli.main import main
sys.argv = ["rampcli", *json.loads(sys.argv[1])]
code = 0
try:
    main()
except SystemExit as end:
    code = end.code or 0
print(json.dumps({"exit_code": code, "loaded": list(sys.modules)}), file=sys.stderr)
"""


def of_launch(modules) -> set[str]:
    return {name for name in modules if name.startswith("rampcli.launch.")}


def of_declarations() -> set[str]:
    """The modules of `rampcli.launch` that every command imports."""
    probe = "import sys; from rampcli.plugins.launchers import declarations; declarations()"
    probe += "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return of_launch(done.stdout.split())


def imported_by(*words: str, folder: Path | None = None) -> tuple[int, set[str]]:
    """Returns the exit code of a command and the modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(words)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    probed = json.loads(done.stderr.splitlines()[-1])
    return probed["exit_code"], set(probed["loaded"])


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        *([*command.split(), "--help"] for command in ("", "pretrain", "plan", "data")),
        *([*command.split(), "--help"] for command in ("data build", "data inspect")),
    ],
)
def test_help_imports_no_slow_module_and_not_rich(words):
    exit_code, loaded = imported_by(*words)
    assert exit_code == 0
    assert {*SLOW, "rich"} & loaded == set()


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (["plan", "--factory", "gpt3_5b"], 0),
        (["plan", "-f", "llama3_8b", "model.rampup_batch_size=[256,128,50_000_000]", "--json"], 0),
        (["plan", "--factory", "llama3_8b", "model.num_layer=4"], 2),
        (["pretrain", "--factory", "llama3_8b", "--dry-run", "hardware=any"], 0),
        (["explain", "--factory", "llama3_8b", "optim.lr"], 0),
        (["recipes"], 0),
        (["ramps"], 0),
        (["ramps", "palm_540b"], 0),
        (["status"], 0),
        (["__complete", "plan", "-cd", ".", "optim="], 0),
    ],
)
def test_a_command_that_only_reads_settings_imports_no_slow_module(words, exit_code, tmp_path):
    code, loaded = imported_by(*words, folder=tmp_path)
    assert code == exit_code
    assert SLOW & loaded == set()


def test_settings_import_the_declarations_of_launchers_and_not_the_launchers():
    _, loaded = imported_by("explain", "--factory", "llama3_8b", "launch.slurm.time")
    assert of_declarations() <= loaded
    assert {f"{package}.launcher" for package in LAUNCHERS.values()} & loaded == set()


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "--factory", "llama3_70b", "--estimate"),
        ("sweep", "--factory", "llama3_tiny", "optim.lr=0.1,0.2", "--dry-run"),
    ],
)
def test_estimates_and_sweeps_do_not_import_torch(words):
    exit_code, loaded = imported_by(*words)
    assert exit_code == 0
    assert {"torch", "numpy"} & loaded == set()


@pytest.mark.parametrize(
    "module",
    ["cli.training", "cli.tune_search", "cli.data_build", "worker.__main__", "worker.speed_rank"],
)
def test_supervising_and_building_a_corpus_and_ranks_that_begin_do_not_import_torch(module):
    probe = f"import sys, rampcli.{module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_worker_imports_only_what_a_plain_run_needs_and_nearly_all_before_its_turn(
    tmp_path,
):
    settings = TINY | {"run_dir": tmp_path, "rampup.node_policy": "fixed", "trainer.num_nodes": 1}
    words = [f"{key}={value}" for key, value in settings.items()]
    write_run_files(
        RunDirectory(tmp_path), resolve(apply_overrides(llm.from_factory("llama3_tiny"), words)), []
    )
    for stage in range(2):  # a new run, and one that resumes from a checkpoint
        worker = [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "rampcli.worker",
            str(tmp_path),
            "--wait",
        ]
        done = subprocess.run(
            worker, input="0\n", env=environment(), capture_output=True, text=True, check=True
        )
        imported = [
            line.rpartition("|")[2].strip()
            for line in done.stderr.splitlines()
            if line.startswith("import time:")
        ]
        assert {"torch", "rampcli.train.loop"} <= set(imported)
        assert UNNEEDED & set(imported) == set()
        assert of_launch(imported) <= of_declarations()
        assert len(imported) - imported.index("rampcli.worker.assemble") < 20
        assert RunDirectory(tmp_path).read_state()["stage"] == stage + 1
