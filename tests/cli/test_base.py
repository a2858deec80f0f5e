"""What the commands that compose a configuration have in common."""

import json
from pathlib import Path

import pytest
import yaml

from rampcli.files import bundled

FILES = {
    "mine.yaml": "defaults: [config, _self_]\nname: my\nhydra:\n  run: {dir: 'out/${name}'}\n"
    "  sweep: {dir: 'many/${name}'}\n",
    "exp/a.yaml": "# @package _global_\noptim:\n  min_lr: ${divide:${optim.lr},10}\n"
    "trainer:\n  val_every_steps: ${model.global_batch_size}\n",
    "rewards.yaml": "defaults: [config, _self_, override rl: sort_digits, override model:"
    " sort_digits]\ndata: {source: pairs, task: sort}\n",
}
EXPORT = Path(__file__).parents[1] / "words" / "nemo_files" / "export.yaml"
COMPOSING = ("pretrain", "plan", "rl", "sweep", "tune", "explain", "doctor")


@pytest.fixture(autouse=True)
def folder(tmp_path):
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return tmp_path


@pytest.fixture
def job(rampcli):
    """Returns the configuration that `--cfg job --resolve` prints, by section."""

    def composed(*words):
        ended = rampcli(*words, "--cfg", "job", "--resolve")
        assert ended.exit_code == 0, ended.stderr
        return yaml.safe_load(ended.stdout)

    return composed


@pytest.mark.parametrize("command", COMPOSING)
def test_each_command_that_composes_prints_the_same_configuration(job, command):
    words = ("-cd", ".", "-cn", "mine", "+exp=a", "optim.lr=0.5", "rl=none")
    own = job(command, *words)
    assert (own["name"], own["optim"]["min_lr"]) == ("my", 0.05)
    if command != "rl":
        assert own == job("plan", *words)


def test_the_tree_of_a_file_whose_sections_are_settings_here_is_printed(job):
    assert job("plan", "--factory", str(EXPORT))["data"]["tokenizer"]["_target_"].startswith(
        "nemo."
    )


def test_folders_of_hydra_are_those_of_the_run_and_of_the_sweep(rampcli):
    words = ("-cd", ".", "-cn", "mine")
    assert "run directory out/my\n" in rampcli("plan", *words).stdout
    swept = rampcli("sweep", *words, "optim.lr=1e-3,2e-3", "--dry-run")
    assert swept.stdout.endswith("folder: many/my\n")
    typed = rampcli("plan", *words, "hydra.run.dir=out/typed")
    assert "run directory out/typed\n" in typed.stdout


def test_multirun_is_the_sweep_and_takes_its_options(rampcli, refuse):
    words = ("-f", "llama3_tiny", "optim.lr=1e-3,2e-3")
    swept = rampcli("sweep", *words, "--dry-run", "--json").stdout
    for command in ("sweep", "pretrain", "plan"):
        given = ("--dry-run",) if command != "plan" else ()
        json_given = ("--json",) if command != "pretrain" else ()
        ended = rampcli(command, "-m", *words, *given, *json_given)
        assert ended.exit_code == 0, ended.stderr
        if json_given:
            assert json.loads(ended.stdout) == json.loads(swept)
    assert "--retune is about one run" in refuse("plan", "-m", "--retune", *words)


def test_a_reference_follows_the_word_of_another_system_and_what_is_retuned(json_of):
    words = ("-f", "llama3_tiny", "-cd", ".", "+exp=a")
    spelled = ("data.global_batch_size=32", "model.rampup_batch_size=null")
    (fact,) = json_of("explain", "trainer.val_every_steps", *words, *spelled)
    assert (fact["value"], fact["set_by"]) == (32, "${model.global_batch_size} (exp/a.yaml:5)")
    keys = ("explain", "optim.lr", "optim.min_lr", "--retune", *words)
    rate, least = json_of(*keys, "model.global_batch_size=8", *spelled[1:])
    assert least["value"] == rate["value"] / 10


def test_reinforcement_learning_keeps_the_option_of_a_primary_file(job):
    words = ("-cd", ".", "-cn", "rewards")
    assert job("rl", *words)["rl"] == job("plan", *words)["rl"]


@pytest.mark.parametrize("view", ["job", "hydra", "all"])
def test_a_view_of_wrong_words_is_refused(refuse, view):
    assert "optim.lrr" in refuse("plan", "-f", "llama3_tiny", "--cfg", view, "optim.lrr=3")


def test_the_search_path_of_a_word_is_that_of_a_folder(rampcli, folder):
    for command in ("plan", "sweep"):
        swept = ("optim.lr=1e-3,2e-3", "--dry-run") if command == "sweep" else ()
        word = f"hydra.searchpath=[file://{folder}]"
        named = rampcli(command, "-f", "llama3_tiny", "-cd", ".", "+exp=a", *swept)
        searched = rampcli(command, "-f", "llama3_tiny", word, "+exp=a", *swept)
        assert searched.stdout == named.stdout


@pytest.mark.parametrize("is_absolute", [False, True])
@pytest.mark.parametrize("name", ["more/mine.yaml", "more/mine", "./more/mine.yaml"])
def test_the_path_of_a_primary_file_is_answered_with_its_folder_and_name(
    rampcli, refuse, folder, name, is_absolute
):
    (folder / "more").mkdir()
    (folder / "mine.yaml").rename(folder / "more" / "mine.yaml")
    refused = refuse("plan", "-cn", str(folder / name) if is_absolute else name)
    own = folder / "more" if is_absolute else "more"
    assert f"error: {own}/mine.yaml is a path" in refused
    remedy = ("--config-path", str(own), "--config-name", "mine")
    assert refused.endswith(f"try:    {' '.join(remedy)}\n")
    assert rampcli("plan", *remedy).exit_code == 0


def test_a_primary_file_that_does_not_exist_is_never_advised_into_the_package(rampcli):
    assert str(bundled("conf")) not in rampcli("plan", "-cn", "nope").stderr


@pytest.mark.parametrize("entry", ["file://${oc.env:MY_CONFIGS}", "${oc.env:NO_CONFIGS,more}"])
@pytest.mark.parametrize("is_typed", [False, True])
def test_the_search_path_may_come_from_the_environment(
    rampcli, folder, monkeypatch, entry, is_typed
):
    (folder / "more/exp").mkdir(parents=True)
    (folder / "more/exp/far.yaml").write_text("# @package _global_\nname: far\n")
    monkeypatch.setenv("MY_CONFIGS", str(folder / "more"))
    own = "" if is_typed else f"hydra:\n  searchpath: ['{entry}']\n"
    (folder / "here.yaml").write_text(f"defaults: [config, _self_]\n{own}")
    words = ("-cd", ".", "-cn", "here", *([f"hydra.searchpath=[{entry}]"] if is_typed else []))
    assert "run directory runs/far\n" in rampcli("plan", *words, "exp=far").stdout


def test_the_search_path_of_a_file_refers_to_its_own_values_and_to_no_others(
    succeed, refuse, folder
):
    (folder / "more").mkdir()
    file = folder / "here.yaml"
    list_and_folder = "defaults: [config, _self_]\nrun_dir: more\n"
    file.write_text(f"{list_and_folder}hydra: {{searchpath: ['${{run_dir}}']}}\n")
    here = ("plan", "-cd", ".", "-cn", "here")
    assert succeed(*here, "--info", "searchpath").endswith("\nmore\n")
    for reference in ("${optim.lrr}", "${optim}", "${oc.env:MY_TOKEN}"):
        file.write_text(f"defaults: [config, _self_]\nhydra: {{searchpath: ['{reference}']}}\n")
        assert "set by: hydra.searchpath (here.yaml:2)" in refuse(*here), reference


def test_a_section_with_its_sources_has_the_lines_of_the_whole(rampcli, refuse):
    words = ("-f", "llama3_tiny", "-cd", ".", "+exp=a", "optim.lr=0.5")
    whole = [line.split() for line in rampcli("plan", *words, "--cfg").stdout.splitlines()]
    for section in ("optim", "launch.slurm", "trainer", "_global_"):
        header, *lines = rampcli("plan", *words, "--cfg", "-p", section).stdout.splitlines()
        assert header == f"# @package {section}"
        assert len(lines) > 5
        assert all(line.split() in whole for line in lines)
    setting = rampcli("plan", *words, "--cfg", "-p", "trainer.val_every_steps").stdout
    assert setting.endswith("\n16  # ${model.global_batch_size} (exp/a.yaml:5)\n")
    assert "has no optimm" in refuse("plan", *words, "--cfg", "-p", "optimm")


def test_errors_about_the_folder_of_a_sweep_name_the_setting_that_was_written(refuse, folder):
    (folder / "both.yaml").write_text(
        "defaults: [config, _self_]\nrun_dir: a\nhydra: {sweep: {dir: b}}\n"
    )
    recipe = ("-f", "llama3_tiny")
    for words in (
        (*recipe, "run_dir=a", "hydra.sweep.dir=b"),
        (*recipe, "hydra.sweep.dir=[1]"),
        ("-cd", ".", "-cn", "both"),
    ):
        refused = refuse("sweep", *words, "optim.lr=1e-3,2e-3", "--dry-run")
        assert ("hydra.sweep.dir" in refused, "hydra.run.dir" in refused) == (True, False)
