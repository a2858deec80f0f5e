import json
import subprocess
import sys

import pytest

PROBE = """
import json, sys
from rampcli.cli.main import main
sys.argv = ["rampcli", *json.loads(sys.argv[1])]
try:
    main()
except SystemExit as end:
    code = end.code or 0
loaded = [name for name in ("torch", "hydra", "omegaconf", "numpy", "rich.progress") if name in sys.modules]
print(json.dumps({"exit_code": code, "loaded": loaded}), file=sys.stderr)
"""


def imported_by(*words: str) -> dict:
    done = subprocess.run([sys.executable, "-c", PROBE, json.dumps(words)], capture_output=True, text=True, check=True)
    return json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize("words", [["--help"], ["pretrain", "--help"], ["plan", "--help"], ["--version"]])
def test_help_imports_neither_torch_nor_hydra(words):
    assert imported_by(*words) == {"exit_code": 0, "loaded": []}


@pytest.mark.parametrize("words", [["plan", "--factory", "gpt3_5b"], ["pretrain", "--factory", "llama3_8b", "--dry-run"]])
def test_planning_does_not_import_torch(words):
    imported = imported_by(*words)
    assert imported["exit_code"] == 0
    assert not {"torch", "numpy"} & set(imported["loaded"])


def test_supervising_does_not_import_torch():
    probe = "import sys, rampcli.cli.training, rampcli.launch.run; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout == "False\n"
