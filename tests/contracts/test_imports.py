import json
import subprocess
import sys

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.config.resolve import resolve
from rampcli.launch.run import describe
from rampcli.run_directory import RunDirectory
from runs import TINY, environment

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
        "rampcli.launch",
        "rampcli.report",
        "rampcli.config.compose",
        "rampcli.config.resolve",
        "rampcli.data.building",
    ),
}
PROBE = """
import json, sys
from rampcli.cli.main import main
sys.argv = ["rampcli", *json.loads(sys.argv[1])]
try:
    main()
except SystemExit as end:
    code = end.code or 0
names = ("torch", "hydra", "omegaconf", "numpy", "rich.progress")
loaded = [name for name in names if name in sys.modules]
print(json.dumps({"exit_code": code, "loaded": loaded}), file=sys.stderr)
"""


def imported_by(*words: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(words)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    "words", [["--help"], ["pretrain", "--help"], ["plan", "--help"], ["--version"]]
)
def test_help_imports_neither_torch_nor_hydra(words):
    assert imported_by(*words) == {"exit_code": 0, "loaded": []}


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--factory", "gpt3_5b"],
        ["pretrain", "--factory", "llama3_8b", "--dry-run"],
        ["tune", "--factory", "llama3_70b", "--estimate"],
        ["sweep", "--factory", "llama3_tiny", "optim.lr=0.1,0.2", "--dry-run"],
    ],
)
def test_planning_does_not_import_torch(words):
    imported = imported_by(*words)
    assert imported["exit_code"] == 0
    assert not {"torch", "numpy"} & set(imported["loaded"])


def test_supervising_does_not_import_torch():
    probe = "import sys, rampcli.cli.training, rampcli.cli.tuning; print('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", probe], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


def test_a_worker_imports_only_what_a_plain_run_needs_and_nearly_all_before_its_turn(
    tmp_path,
):
    settings = TINY | {"run_dir": tmp_path, "rampup.node_policy": "fixed", "trainer.num_nodes": 1}
    words = [f"{key}={value}" for key, value in settings.items()]
    describe(
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
        assert len(imported) - imported.index("rampcli.worker.assemble") < 20
        assert RunDirectory(tmp_path).read_state()["stage"] == stage + 1
