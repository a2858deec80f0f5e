"""No command imports a module from the working directory."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hostile.materials import pretrain
from hostile.world import World

SCRIPT = Path(sys.executable).with_name("rampcli")
COMMANDS = {
    "export run out": 0,
    pretrain("trainer.max_samples=20", "launch.elastic=true"): 0,
    f"{pretrain('launch=slurm')} --dry-run": 0,
    "doctor --factory llama3_tiny": (0, 1),
    "plan --factory llama3_tiny --plot plan.svg": 0,
    "explain model.global_batch_size": 0,
    "status run": 0,
    "cancel run": 2,
    "import hf mine/model/x.yaml": 0,
    "data build in.jsonl --output new --tokenizer bytes --workers 2": 0,
    "data inspect corpus --verify": 0,
    "completion bash": 0,
    "--help": 0,
}
USES = ("run", "corpus", "hf", "in.jsonl")


# `generate` and runs that are not elastic follow below: they start the same kinds of children.
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_from_the_working_directory(command, materials, tmp_path):
    world = World.build(tmp_path, materials, USES)
    done = rampcli(world, command)
    codes = COMMANDS[command] if isinstance(COMMANDS[command], tuple) else (COMMANDS[command],)
    assert done.returncode in codes, done.stderr
    assert imported(world) == []


@pytest.mark.parametrize(
    "command",
    ["generate run --prompt text --max-tokens 2", pretrain("trainer.max_samples=20"), "doctor"],
)
def test_an_empty_entry_of_pythonpath_does_not_let_children_import_from_there(
    command, materials, tmp_path
):
    """Python starts the script with that entry on its path, so the script may import from there."""
    world = World.build(tmp_path, materials, USES)
    for name in ("sitecustomize.py", "json.py", "typer.py"):
        (world.here / name).unlink()
    shutil.rmtree(world.here / "rampcli")
    done = rampcli(world, command, PYTHONPATH=os.pathsep)
    assert done.returncode in (0, 1), done.stderr
    assert imported(world) == []


def rampcli(world: World, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONSAFEPATH")
    }
    environment |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    return subprocess.run(
        [SCRIPT, *command.split()],
        cwd=world.here,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )


def imported(world: World) -> list[str]:
    """Returns the imported canaries, with the command lines of the importing processes."""
    found = world.outside.glob("ran.*")
    return [
        f"{path.name}: {path.read_bytes().replace(bytes(1), b' ').decode(errors='replace')}"
        for path in sorted(found)
    ]
