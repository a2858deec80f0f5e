"""A recipe of one's own: written by rampcli, changed, and named in every way."""

import json

OWN = '''
from rampcli import Config, compose


def small(num_nodes: int = 1, num_gpus_per_node: int = 1) -> Config:
    """Trains four steps."""
    return compose(
        "name=small",
        "model=llama3_tiny",
        "data=stdlib",
        "optim=llama3_tiny",
        "data.sequence_length=32",
        "data.micro_batch_size=2",
        "model.global_batch_size=4",
        "model.rampup_batch_size=null",
        "trainer.max_samples=16",
        "optim.warmup_samples=4",
        f"trainer.num_nodes={num_nodes}",
        f"trainer.devices={num_gpus_per_node}",
    )


def large() -> Config:
    return compose("name=large", "model=llama3_8b", "data=mock", "trainer.max_steps=10")
'''


def plan_of(newcomer, factory, *words):
    return json.loads(newcomer.succeed("plan", "--factory", factory, *words, "--json"))


def test_the_recipe_that_rampcli_writes_is_planned_as_it_says(newcomer):
    *_, plan, pretrain = newcomer.succeed("recipes", "--new", "mine").splitlines()
    assert pretrain.split() == ["rampcli", "pretrain", "--factory", "mine.py"]
    assert "runs/mine" in newcomer.succeed(*plan.split()[1:])
    newcomer.succeed(*pretrain.split()[1:], "--dry-run")
    assert "mine.py exists already" in newcomer.refused("recipes", "--new", "mine")
    assert "--factory mine.py" in newcomer.refused("plan", "--factory", "mine")
    assert [path.name for path in newcomer.folder.iterdir()] == ["mine.py"]


def test_a_recipe_is_a_file_a_function_of_it_a_module_or_a_file_of_settings(newcomer):
    (newcomer.folder / "own.py").write_text(OWN)
    file = plan_of(newcomer, "own.py:small")
    assert plan_of(newcomer, "own.py:small(num_nodes=2)") != file
    assert plan_of(newcomer, newcomer.folder / "own.py:small") == file
    module = newcomer.succeed(
        "plan", "--factory", "own:small", "--json", PYTHONPATH=str(newcomer.folder)
    )
    assert json.loads(module) == file
    several = newcomer.refused("plan", "--factory", "own.py")
    assert "several recipes" in several
    assert "own.py:small or --factory own.py:large" in several
    cfg = newcomer.succeed("pretrain", "--factory", "own.py:small", "--cfg")
    (newcomer.folder / "cfg.yaml").write_text(cfg)
    assert plan_of(newcomer, "cfg.yaml") == file
    # A group that is chosen on the command line replaces what the file says of it.
    mock = newcomer.succeed("explain", "--factory", "cfg.yaml", "data=mock", "data.source")
    assert "data/mock.yaml:2" in mock
    newcomer.succeed("pretrain", "--factory", "own.py:small")
    assert plan_of(newcomer, "runs/small/config.yaml") == file
    resumed = newcomer.succeed("pretrain", "--factory", "runs/small/config.yaml")
    assert "already complete" in resumed


def test_an_error_in_a_recipe_file_is_one_message_with_its_line(newcomer):
    for content, message in {
        "def own(:\n": "own.py: line 1: SyntaxError",
        "\nimport no_such_package\n": "own.py: line 2: ModuleNotFoundError",
        "def own():\n    return 1 / 0\n": "own.py: line 2: ZeroDivisionError",
        "def own():\n    return 3\n": "own.py returned a value of type int, not a Config",
        "def _own():\n    return 3\n": "own.py has no recipe",
    }.items():
        (newcomer.folder / "own.py").write_text(content)
        refused = newcomer.refused("pretrain", "--factory", "own.py")
        assert message in refused
        assert "Traceback" not in refused
    assert "rampcli recipes --new other" in newcomer.refused("plan", "--factory", "other.py")
    (newcomer.folder / "wrong.yaml").write_text("trainer:\n  max_step: 3\n")
    assert "wrong.yaml:2" in newcomer.refused("plan", "--factory", "wrong.yaml")


def test_nothing_in_the_working_directory_is_imported_unless_it_is_named(newcomer):
    for name in ("torch", "hydra", "mine"):
        (newcomer.folder / f"{name}.py").write_text("raise SystemExit('imported')\n")
    (newcomer.folder / "own.py").write_text(OWN)
    for factory, printed in {
        "llama3_tiny": "",
        "own.py:small": "",
        "mine:small": "No module named 'mine'",
    }.items():
        ended = newcomer.start_from_shell("plan", "--factory", factory)
        assert ended.returncode == (2 if printed else 0)
        assert printed in ended.stderr
