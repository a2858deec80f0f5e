import copy

import pytest
import yaml
from hypothesis import example, given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.config import snapshot
from rampcli.config.compose import apply_overrides
from rampcli.config.layers import build_config
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import flatten, leaves, settings
from rampcli.settings.config import Config


@pytest.fixture(scope="session")
def resolved(composed):
    return resolve(composed)


def read_back(config, folder):
    path = folder / "config.yaml"
    path.write_text(snapshot.to_yaml(config), encoding="utf-8")
    return snapshot.read(path)


def test_a_snapshot_is_read_back_unchanged(resolved, tmp_path):
    assert read_back(resolved.config, tmp_path) == resolved.config


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("rl: {generations_per_prompt: 4, reward: gone.py:score}", "prompts"),
        ("rl: {generations_per_prompt: null}", "samples"),
        ("rl: 4", "samples"),
        ("&a [", "samples"),
    ],
)
def test_what_a_run_counts_is_read_without_checking_its_settings(text, unit, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    assert snapshot.unit(tmp_path / "config.yaml") == unit


def test_a_snapshot_gives_the_resolved_plan(resolved, tmp_path):
    again = resolve(read_back(resolved.config, tmp_path))
    assert again.plan == resolved.plan
    assert dict(leaves(again.config)) == dict(leaves(resolved.config))


def test_a_snapshot_has_every_setting_once_and_no_spelling_of_another_system(resolved):
    document = yaml.safe_load(snapshot.to_yaml(resolved.config))
    document.pop("set_by")
    assert list(flatten(document)) == list(settings())


def test_a_snapshot_with_the_earlier_name_of_a_choice_is_read_as_the_choice(composed, tmp_path):
    text = snapshot.to_yaml(resolve(composed).config)
    earlier = text.replace("at_boundary: restart", "at_boundary: stop")
    assert earlier != text
    (tmp_path / "config.yaml").write_text(earlier)
    (tmp_path / "today.yaml").write_text(text)
    assert snapshot.read(tmp_path / "config.yaml") == snapshot.read(tmp_path / "today.yaml")


def test_any_yaml_reader_reads_the_same_snapshot(resolved):
    config = copy.deepcopy(resolved.config)
    config.optim.lr, config.optim.eps, config.name = 1e-5, 5e-324, "on"
    document = yaml.safe_load(snapshot.to_yaml(config))
    document.pop("set_by")
    assert flatten(document) == dict(leaves(config))


def test_a_snapshot_names_the_place_of_every_setting_that_is_not_a_default(composed):
    words = ["data.global_batch_size=4096", "seed=1234", "rampup.node_policy=best"]
    config = resolve(apply_overrides(composed, words)).config
    places = yaml.safe_load(snapshot.to_yaml(config))["set_by"]
    assert places["model.global_batch_size"] == "data.global_batch_size=4096 (command line)"
    assert places["seed"] == places["rampup.node_policy"] == "command line"
    assert places["optim.lr"] == config.stack.entry("optim.lr").place
    defaults = {key for key in dict(leaves(config)) if config.stack.entry(key).place == "default"}
    assert set(places) == set(dict(leaves(config))) - defaults


def test_places_are_read_back_unchanged(recipe, tmp_path):
    recipe.optim.lr = 0.5
    words = ["data.global_batch_size=4096", "seed=1234", "rampup.efficiency='1:9000 4:11500'"]
    config = resolve(apply_overrides(recipe, words)).config
    back = read_back(config, tmp_path)
    for key in dict(leaves(config)):
        assert back.stack.entry(key).place == config.stack.entry(key).place
        assert back.stack.entry(key).value == config.stack.entry(key).value
    assert snapshot.to_yaml(back) == snapshot.to_yaml(config)


def test_a_snapshot_without_places_is_the_place_of_its_settings(resolved, tmp_path):
    document = yaml.safe_load(snapshot.to_yaml(resolved.config))
    del document["set_by"]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    config = snapshot.read(path)
    assert config == resolved.config
    assert config.stack.entry("optim.lr").place == str(path)
    assert config.stack.entry("seed").place == "default"
    assert snapshot.identity(config) == snapshot.identity(resolved.config)


@pytest.mark.parametrize(
    "place", ["a\x1b[2Jb", "\u202eb", "x" * 9000, "${seed}", "a: b # c", "\ud800"]
)
def test_any_place_is_kept_by_a_snapshot_as_one_visible_line(place, tmp_path):
    config = build_config({"seed": 5}, place=place)
    back = read_back(config, tmp_path).stack.entry("seed").place
    assert back.isprintable()
    assert 0 < len(back) < 400


@run(max_examples=8)
@given(name=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12))
@example(name="null")
@example(name="1e3")
@example(name="007")
@example(name="yes")
@example(name="a: b # c")
@example(name="'\"")
@example(name=" a ")
def test_any_name_is_kept_by_a_snapshot(name, tmp_path_factory):
    if "${" in name or "/" in name or name in (".", "..") or not name.isprintable():
        return  # not the name of a run
    config = Config(name=name)
    assert read_back(config, tmp_path_factory.mktemp("read_back")).name == name


@run(max_examples=8)
@given(lr=st.floats(0, 1e18), samples=st.integers(1, 10**18))
@example(lr=1e-5, samples=1)
def test_any_number_is_kept_by_a_snapshot(lr, samples, tmp_path_factory):
    config = Config()
    config.optim.lr, config.trainer.max_samples, config.model.rampup_batch_size = (
        lr,
        samples,
        [1, 1, samples],
    )
    back = read_back(config, tmp_path_factory.mktemp("read_back"))
    assert (back.optim.lr, back.trainer.max_samples, back.model.rampup_batch_size) == (
        lr,
        samples,
        [1, 1, samples],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "cannot read"),
        ("a: b: c", "cannot read"),
        ("- 1\n", "no settings"),
        ("", "no settings"),
        ("a: &a [x, x]\nb: [*a, *a]\n", "line 1: anchors, aliases and tags are not supported"),
        ("name: !!str x\n", "anchors, aliases and tags are not supported"),
        ("name: " + "[" * 50 + "]" * 50, "more than 20 levels"),
        ("name: '" + "x" * 200_000 + "'", "larger than 200,000 bytes"),
        ("model:\n  num_layers: -5\n", "model.num_layers=-5 is below 1"),
        ("model:\n  num_layers: 1000000000\n", "model.num_layers=1000000000 is above 10000"),
        ("model:\n  num_attention_heads: 3\n", "model.hidden_size=128 does not divide"),
        ("data:\n  sequence_length: .nan\n", "is not an integer"),
        ("trainer:\n  max_steps: 2001-99-99\n", "not YAML"),
        ("name: ../outside\n", "cannot name a folder"),
        ("seed: many\n", "seed=many is not an integer"),
        ("model:\n  _target_: os.system\n", "there is no setting model._target_"),
        ("name: ${oc.env:HOME}\n", "are not resolved here"),
        ("seed: 1\nseed: 2\n", "seed is set twice"),
        ("seed: 1\nset_by: here\n", "set_by is not a section"),
        ("data:\n  global_batch_size: 8\n", "data.global_batch_size=8 is a spelling"),
        ("per_device_batch_size: 4\n", "per_device_batch_size=4 is a spelling"),
        ("seed: 1\nset_by:\n  seed: 5\n", "the place of seed is not a string"),
        ("seed: 1\nset_by:\n  sede: here\n", "there is no setting sede"),
    ],
)
def test_a_damaged_or_foreign_snapshot_is_refused(tmp_path, text, message):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refusal:
        snapshot.read(path)
    assert message in refusal.value.message
    assert str(path) in str(refusal.value)


def test_a_missing_snapshot_is_refused_with_its_path(tmp_path):
    with pytest.raises(UsageError, match="cannot read") as refusal:
        snapshot.read(tmp_path / "config.yaml")
    assert str(tmp_path / "config.yaml") in refusal.value.message


def test_a_hostile_snapshot_runs_no_code(tmp_path):
    path, proof = tmp_path / "config.yaml", tmp_path / "ran"
    path.write_text(f"name: !!python/object/apply:os.mkdir ['{proof}']\n", encoding="utf-8")
    with pytest.raises(UsageError):
        snapshot.read(path)
    assert not proof.exists()


def test_a_mapping_reads_back_with_names_that_yaml_takes_for_other_values(composed, tmp_path):
    words = ["data=text", "data.path=a", "data.validation={on:b,1:c,null-x:d}"]
    config = resolve(apply_overrides(composed, words)).config
    again = read_back(config, tmp_path)
    assert again.data.validation == {"on": "b", "1": "c", "null-x": "d"}
    assert snapshot.identity(again) == snapshot.identity(composed) | {"data.source": "text"}
