import copy

import pytest
import yaml
from hypothesis import example, given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.config import snapshot
from rampcli.config.resolve import resolve
from rampcli.config.schema import Config
from rampcli.config.settings import FOREIGN, flatten, settings
from rampcli.errors import UsageError


@pytest.fixture(scope="session")
def resolved(composed):
    return resolve(composed)


def read_back(config, folder):
    path = folder / "config.yaml"
    path.write_text(snapshot.to_yaml(config), encoding="utf-8")
    return snapshot.read(path)


def test_a_snapshot_is_read_as_it_was_written(resolved, tmp_path):
    assert read_back(resolved.config, tmp_path) == resolved.config


def test_a_snapshot_gives_the_plan_of_what_was_resolved(resolved, tmp_path):
    again = resolve(read_back(resolved.config, tmp_path))
    assert again.plan == resolved.plan
    assert snapshot.to_yaml(again.config) == snapshot.to_yaml(resolved.config)


def test_a_snapshot_holds_every_setting_once_and_no_other_systems_spelling(resolved):
    document = yaml.safe_load(snapshot.to_yaml(resolved.config))
    assert list(flatten(document)) == [key for key in settings() if key not in FOREIGN]


def test_a_snapshot_says_the_same_to_any_reader_of_yaml(resolved):
    config = copy.deepcopy(resolved.config)
    config.optim.lr, config.optim.eps, config.name = 1e-5, 5e-324, "on"
    assert flatten(yaml.safe_load(snapshot.to_yaml(config))) == snapshot.settings(config)


@run(max_examples=8)
@given(name=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12))
@example(name="null")
@example(name="1e3")
@example(name="007")
@example(name="yes")
@example(name="a: b # c")
@example(name="'\"")
@example(name=" a ")
def test_any_name_survives_a_snapshot(name, tmp_path_factory):
    if "${" in name or "/" in name or name in (".", "..") or not name.isprintable():
        return  # no name of a run
    config = Config(name=name)
    assert read_back(config, tmp_path_factory.getbasetemp()).name == name


@run(max_examples=8)
@given(lr=st.floats(0, 1e18), samples=st.integers(1, 10**18))
@example(lr=1e-5, samples=1)
def test_any_number_survives_a_snapshot(lr, samples, tmp_path_factory):
    config = Config()
    config.optim.lr, config.trainer.max_samples, config.model.rampup_batch_size = (
        lr,
        samples,
        [1, 1, samples],
    )
    back = read_back(config, tmp_path_factory.getbasetemp())
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
        ("- 1\n", "holds no settings"),
        ("", "holds no settings"),
        ("a: &a [x, x]\nb: [*a, *a]\n", "line 1: anchors, aliases and tags are not read"),
        ("name: !!str x\n", "anchors, aliases and tags are not read"),
        ("name: " + "[" * 50 + "]" * 50, "more than 20 levels"),
        ("name: '" + "x" * 200_000 + "'", "larger than 200,000 bytes"),
        ("model:\n  num_layers: -5\n", "model.num_layers=-5 is below 1"),
        ("model:\n  num_layers: 1000000000\n", "model.num_layers=1000000000 is above 10000"),
        ("model:\n  num_attention_heads: 3\n", "model.hidden_size=128 does not divide"),
        ("data:\n  sequence_length: .nan\n", "is not an integer"),
        ("trainer:\n  max_steps: 2001-99-99\n", "is not YAML"),
        ("name: ../outside\n", "cannot name a folder"),
        ("seed: many\n", "seed=many is not an integer"),
        ("model:\n  _target_: os.system\n", "there is no setting model._target_"),
        ("name: ${oc.env:HOME}\n", "are not resolved here"),
        ("seed: 1\nseed: 2\n", "seed stands there twice"),
    ],
)
def test_a_damaged_or_foreign_snapshot_is_refused(tmp_path, text, message):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refusal:
        snapshot.read(path)
    assert message in refusal.value.message
    assert str(path) in str(refusal.value)


def test_a_snapshot_that_is_not_there_is_refused_by_its_path(tmp_path):
    with pytest.raises(UsageError, match="cannot read") as refusal:
        snapshot.read(tmp_path / "config.yaml")
    assert str(tmp_path / "config.yaml") in refusal.value.message


def test_a_snapshot_from_a_stranger_runs_no_code(tmp_path):
    path, proof = tmp_path / "config.yaml", tmp_path / "ran"
    path.write_text(f"name: !!python/object/apply:os.mkdir ['{proof}']\n", encoding="utf-8")
    with pytest.raises(UsageError):
        snapshot.read(path)
    assert not proof.exists()
