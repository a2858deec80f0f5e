import json
import shutil

from first_hour.conftest import REPOSITORY


def test_the_wheel_runs_without_the_repository(newcomer):
    """Its recipes and settings come from the wheel, and a dry run writes nothing."""
    where = newcomer.run(newcomer.python, "-c", "import rampcli; print(rampcli.__file__)").stdout
    assert where.startswith(str(newcomer.python.parents[1]))
    plan = json.loads(newcomer.succeed("plan", "--factory", "llama3_tiny", "--json"))
    assert plan["stages"][0]["global_batch_size"] == 4
    dry = newcomer.start_from_shell("pretrain", "--factory", "llama3_tiny", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert [*newcomer.folder.iterdir()] == []


def test_an_application_of_hydra_finds_the_groups_and_the_schema_of_the_wheel(newcomer):
    app = newcomer.folder / "hydra-app"
    shutil.copytree(REPOSITORY / "docs" / "examples" / "hydra-app", app)
    done = newcomer.run(newcomer.python, app / "app.py", "model=gpt3_5b", "hydra.run.dir=.")
    assert done.returncode == 0, done.stderr
    assert "model: 5.07B parameters" in done.stdout
    searched = "hydra.searchpath=[pkg://rampcli.conf]"
    assert newcomer.run(newcomer.python, app / "app.py", searched).returncode == 0
    assert newcomer.run(newcomer.python, app / "app.py", "model.num_layer=4").returncode == 1
