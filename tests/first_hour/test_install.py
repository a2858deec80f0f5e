import json
import shutil
import subprocess
import sys
import zipfile

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


def test_a_wheel_from_the_source_distribution_has_the_groups_and_the_plugin(tmp_path):
    """rampcli/conf is a link in the repository, which an archive does not keep."""
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, REPOSITORY)
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {*zipfile.ZipFile(wheel).namelist()}
    conf = {f"rampcli/{path.relative_to(REPOSITORY)}" for path in REPOSITORY.glob("conf/**/*.yaml")}
    assert conf <= packed
    assert {"rampcli/conf/__init__.py", "hydra_plugins/rampcli_groups.py"} <= packed
    assert not [name for name in packed if "__pycache__" in name]
