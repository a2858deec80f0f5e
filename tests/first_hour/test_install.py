import json


def test_the_wheel_runs_without_the_repository(newcomer):
    """Its recipes and settings come from the wheel, and a dry run writes nothing."""
    where = newcomer.run(newcomer.python, "-c", "import rampcli; print(rampcli.__file__)").stdout
    assert where.startswith(str(newcomer.python.parents[1]))
    plan = json.loads(newcomer.succeed("plan", "--factory", "llama3_tiny", "--json"))
    assert plan["stages"][0]["global_batch_size"] == 4
    dry = newcomer.start_from_shell("pretrain", "--factory", "llama3_tiny", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert [*newcomer.folder.iterdir()] == []
