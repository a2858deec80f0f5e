import json
import subprocess
import sys

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.run import describe
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from tiny_runs import TINY, environment


def test_an_error_in_a_worker_names_the_word_that_was_typed(tmp_path):
    run = RunDirectory(tmp_path / "run")
    settings = TINY | {"trainer.accelerator": "gpu", "run_dir": str(run.path)}
    words = [f"{key}={value}" for key, value in settings.items()]
    describe(run, resolve(apply_overrides(llm.from_factory("llama3_tiny"), words)), words)
    ended = subprocess.run(
        [sys.executable, "-m", "rampcli.worker", str(run.path)],
        env={**environment(), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    place = "trainer.accelerator=gpu (command line)"
    assert ended.returncode == 2
    assert f"set by: {place}\n" in ended.stderr
    assert json.loads((run.path / "state.json").read_text())["error"]["set_by"] == [place]
