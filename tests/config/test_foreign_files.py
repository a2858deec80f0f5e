"""How files of NeMo and the words beside them become one configuration."""

import re
from functools import reduce
from pathlib import Path

import pytest
import yaml

from rampcli.config.compose import apply_overrides, primary_of, primary_stack, relaid
from rampcli.config.groups import Primary
from rampcli.config.layers import Stack
from rampcli.errors import UsageError, shown
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import leaves

FOLDER = Path(__file__).parents[1] / "words" / "nemo_files"


def over(file, *words):
    """Returns the layers of a file of NeMo with words on top."""
    return apply_overrides(primary_stack(primary_of(str(file))), words)


def facts(stack):
    """Returns the settings in their order, and what a run does not do."""
    effects = stack.effects
    return [*leaves(stack.config())], effects.unsupported, {*effects.unchanged}


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("launcher", "model.optim.lr", 1e-3),
        ("launcher", "model.micro_batch_size", 1),
        ("launcher", "model.tensor_model_parallel_size", 1),
        ("launcher", "model.global_batch_size", 64),
        ("launcher", "model.hidden_size", 256),
        ("launcher", "trainer.max_steps", 10_000),
        ("launcher", "model.optim.sched.constant_steps", 0),
        ("launcher", "model.hidden_dropout", 0.2),
        ("launcher", "trainer.limit_val_batches", 0),
        ("launcher", "model.rampup_batch_size", None),
        ("launcher", "model.data.data_prefix", "/corpora/wiki"),
        ("megatron_gpt", "model.hidden_size", 256),
        ("megatron_gpt", "trainer.max_steps", 1000),
        ("megatron_gpt", "model.optim.sched.warmup_ratio", 0.2),
        ("export", "optim.config.lr", 1.0),
        ("export", "data.global_batch_size", 128),
        ("export", "trainer.strategy.tensor_model_parallel_size", 1),
        ("export", "optim.lr_scheduler.constant_steps", 10),
    ],
)
def test_a_word_over_a_file_of_nemo_means_what_the_file_would(file, key, value, tmp_path):
    tree = yaml.safe_load((FOLDER / f"{file}.yaml").read_text())
    *sections, name = key.split(".")
    branch = tree
    for section in sections:
        branch = branch[section]
    branch[name] = value
    changed = tmp_path / f"{file}.yaml"
    changed.write_text(yaml.safe_dump(tree, sort_keys=False))
    expected = facts(over(changed))
    assert facts(over(FOLDER / f"{file}.yaml", f"{key}={shown(value)}")) == expected
    assert facts(over(FOLDER / f"{file}.yaml")) != expected


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("export", "data.rampup_batch_size", [32, 32, 4000]),
        ("megatron_gpt", "model.ffn_hidden_size", 256),
        ("megatron_gpt", "model.data.data_prefix", "/corpora/wiki"),
    ],
)
def test_a_word_adds_a_key_as_if_the_file_had_it(file, key, value, tmp_path):
    tree = yaml.safe_load((FOLDER / f"{file}.yaml").read_text())
    *sections, name = key.split(".")
    reduce(dict.__getitem__, sections, tree)[name] = value
    changed = tmp_path / f"{file}.yaml"
    changed.write_text(yaml.safe_dump(tree, sort_keys=False))
    typed, expected = over(FOLDER / f"{file}.yaml", f"+{key}={shown(value)}"), over(changed)
    assert facts(typed) == facts(expected)
    assert typed.effects.decides == expected.effects.decides


@pytest.mark.parametrize(
    "words",
    [
        ["model.optim.lr=1e-3", "model.hidden_dropout=0.2"],
        ["data_dir=/corpora"],
        ["model.hidden_size=256", "trainer.max_steps=9000", "checkpoint.every_steps=7"],
    ],
)
def test_words_still_apply_when_others_are_laid_on_top(words):
    file, last = FOLDER / "launcher.yaml", "optim.min_lr=1e-6"
    first = over(file, *words)
    again, together = apply_overrides(first.config(), [last]), over(file, *words, last)
    assert facts(again) == facts(together)
    assert again.notes == together.notes


def test_a_variable_still_applies_when_other_words_are_laid_on_top(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [config, _self_]\nwidth: 64\nmodel:\n  hidden_size: ${width}\n")
    again = apply_overrides(over(file, "width=32").config(), ["optim.lr=0.5"])
    assert again.config().model.hidden_size == 32


def test_two_words_for_one_setting_that_differ_are_refused():
    over(FOLDER / "launcher.yaml", "model.optim.lr=0.5", "optim.lr=0.5")
    over(FOLDER / "launcher.yaml", "trainer.val_check_interval=10", "checkpoint.every_steps=5")
    with pytest.raises(UsageError) as refused:
        over(FOLDER / "launcher.yaml", "model.optim.lr=0.5", "optim.lr=0.25")
    assert refused.value.keys == ("model.optim.lr", "optim.lr")


def test_words_of_other_systems_apply_to_a_file_of_nemo():
    stack = over(FOLDER / "megatron_gpt.yaml", "data.global_batch_size=64")
    assert stack.config().model.global_batch_size == 64
    assert stack.effects.unsupported == {}


VARIABLES = ("data_dir=/data", "base_results_dir=/runs")


OURS = "# @package _global_\nmodel: {global_batch_size: 64}\n"


def test_a_file_of_ours_over_one_of_nemo_replaces_its_values_and_no_other(option):
    primary = primary_stack(primary_of(str(FOLDER / "megatron_gpt.yaml")))
    stack = apply_overrides(primary, ["+exp=mine"], config_dir=option("exp/mine", OURS))
    assert [one.value for one in stack.history("model.global_batch_size")] == [None, 16, 64]
    assert stack.effects.unsupported == {}


@pytest.fixture(params=["alone", "in its tree"])
def layers_with(request, tmp_path):
    """Returns layers of a file of NeMo, alone or in the tree of NeMo's launcher, with words."""
    content = (FOLDER / "launcher.yaml").read_text()
    path = tmp_path / "conf" / "training" / "launcher.yaml"
    path.parent.mkdir(parents=True)

    def composed(*words, changes=()):
        changed = content
        for written, other in changes:
            assert content.count(written) == 1
            changed = changed.replace(written, other)
        path.write_text(changed)
        primary, choice = primary_of(str(path)), []
        if request.param == "in its tree":
            primary, choice = Primary(name=None), ["training=launcher"]
        folder = path.parent.parent
        stack = apply_overrides(primary_stack(primary), choice, config_dir=folder)
        return apply_overrides(stack, [*VARIABLES, *words])

    return composed


def test_a_file_of_ours_over_the_tree_of_a_launcher_leaves_the_value_in_its_section(option):
    option("training/tiny", (FOLDER / "tiny.yaml").read_text())
    words, folder = ["training=tiny", "+exp=mine"], option("exp/mine", OURS)
    composition = apply_overrides(Stack(primary=Primary(name=None)), words, config_dir=folder)
    found, key = composition.composition, "model.global_batch_size"
    assert found.values[key] == 64
    assert found.hidden == {f"training.{key}": found.files[0].leaves[key][1]}


def settings_of(stack):
    return dict(leaves(resolve(stack).config))


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("optim.min_lr=${optim.lr}", "optim.min_lr=4e-4"),
        ("optim.min_lr=${model.optim.lr}", "optim.min_lr=4e-4"),
        ("model.optim.lr=${optim.min_lr}", "model.optim.lr=4e-5"),
        ("trainer.max_steps=${trainer.max_val_samples}", "trainer.max_steps=512"),
        ("optim.warmup_samples=${training.model.global_batch_size}", "optim.warmup_samples=128"),
    ],
)
def test_references_name_keys_of_nemo_and_what_its_rules_decide(layers_with, word, value):
    assert settings_of(layers_with(word)) == settings_of(layers_with(value))


CHANGED = {
    "model.micro_batch_size=4": ("  micro_batch_size: 2", "  micro_batch_size: 4"),
    "training.model.hidden_size=256": ("  hidden_size: 512", "  hidden_size: 256"),
    "training.trainer.num_nodes=2": ("  num_nodes: 4", "  num_nodes: 2"),
    "model.optim.sched.min_lr=1e-5": ("min_lr: 4e-5", "min_lr: 1e-5"),
    "trainer.max_steps=2K": ("  max_steps: 5000", "  max_steps: 2000"),
    "model.global_batch_size=64": ("  global_batch_size: 128", "  global_batch_size: 64"),
    "trainer.devices=4": ("  devices: 8", "  devices: 4"),
    "model.hidden_dropout=0.1": ("  hidden_dropout: 0.0", "  hidden_dropout: 0.1"),
}


def test_words_in_nemos_names_mean_the_same_as_in_the_file(layers_with):
    typed, edited = layers_with(*CHANGED), layers_with(changes=CHANGED.values())
    assert settings_of(typed) == settings_of(edited) != settings_of(layers_with())
    assert typed.effects.unchanged == edited.effects.unchanged
    assert [one.partition("=")[0] for one in typed.effects.unsupported] == ["model.hidden_dropout"]


def test_words_mean_the_same_at_once_and_one_after_another(layers_with):
    words = [*CHANGED, "optim.warmup_samples=${model.global_batch_size}", "seed=5"]
    at_once = one_by_one = layers_with()
    at_once = apply_overrides(at_once, words)
    for word in words:
        one_by_one = apply_overrides(one_by_one, [word])
    one_by_one = relaid(one_by_one)
    assert settings_of(one_by_one) == settings_of(at_once)
    assert one_by_one.effects == at_once.effects


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("tiny", ["model.global_batch_size=16", "seed=5"]),
        ("tiny", ["model.bias=true", "trainer.limit_val_batches=2"]),
        ("megatron_gpt", ["~model.rampup_batch_size", "optim.lr=0.5"]),
        ("export", ["train.global_batch_size=64", "~data.micro_batch_size"]),
        ("export", ["train.global_batch_size=64", "data.micro_batch_size=1"]),
    ],
)
def test_words_over_a_file_without_references_apply_one_after_another(file, words):
    layers, at_once = over(FOLDER / f"{file}.yaml"), over(FOLDER / f"{file}.yaml", *words)
    assert facts(layers) != facts(at_once)
    for word in words:
        layers = apply_overrides(layers, [word])
    assert facts(layers) == facts(at_once)
    assert layers.effects == at_once.effects


def test_a_word_that_takes_part_in_a_decision_leaves_the_users_own_file_above_it(
    layers_with, option
):
    option("conf/exp/own", "# @package _global_\ntrainer: {max_val_samples: 7}\n")
    word = "model.global_batch_size=64"
    found = settings_of(layers_with(word, "+exp=own"))
    assert (found["model.global_batch_size"], found["trainer.max_val_samples"]) == (64, 7)
    assert settings_of(layers_with(word))["trainer.max_val_samples"] == 256


@pytest.mark.parametrize("key", ["model.rampup_batch_size", "model.ffn_hidden_size", "model.bias"])
def test_a_deleted_key_has_nemos_default_as_if_the_file_left_it_out(layers_with, key):
    content = (FOLDER / "launcher.yaml").read_text()
    (line,) = re.findall(rf"(?m)^  {key.split('.')[-1]}: .*\n", content)
    deleted, left_out = relaid(layers_with(f"~{key}")), layers_with(changes=[(line, "")])
    assert settings_of(deleted) == settings_of(left_out) != settings_of(layers_with())
    assert deleted.effects.unsupported == left_out.effects.unsupported


@pytest.mark.parametrize(
    ("ours", "nemos"),
    [
        ("parallel.tensor_parallel_size=4", "model.tensor_model_parallel_size=4"),
        ("train.global_batch_size=256", "model.global_batch_size=256"),
        ("optim.lr=1e-3", "model.optim.lr=1e-3"),
        ("data.micro_batch_size=1", "model.micro_batch_size=1"),
    ],
)
def test_our_words_decide_what_nemos_do(layers_with, ours, nemos):
    follows = "optim.min_lr='${multiply:0.5,${training.model.optim.lr}}'"
    assert settings_of(layers_with(ours, follows)) == settings_of(layers_with(nemos, follows))


def test_the_value_of_the_file_is_behind_that_of_a_word(layers_with):
    stack = layers_with("model.optim.lr=1e-3")
    assert [one.place.partition("=")[0] for one in stack.history("optim.lr")] == [
        *("default", "model.optim.lr", "model.optim.lr"),
    ]


@pytest.mark.parametrize("word", ["phases=null", "phases.decay.until=3K"])
def test_phases_that_a_file_of_nemo_means_are_settings_of_the_run(layers_with, word):
    stack = layers_with(word)
    phases = [key for key in settings_of(stack) if key.startswith("phases.")]
    assert bool(phases) is (word != "phases=null")
    assert stack.effects.unsupported == {}


@pytest.mark.parametrize(
    "reference", ["model.optim.lr='${multiply:1e-4,${model.global_batch_size}}'", "in the file"]
)
def test_a_reference_in_nemos_name_sees_what_words_of_maxtext_decide(layers_with, reference):
    typed = ("per_device_batch_size=1", "model.rampup_batch_size=null")
    if reference == "in the file":
        changes = [("lr: 4e-4", "lr: '${multiply:1e-4,${training.model.global_batch_size}}'")]
        stack = layers_with(*typed, changes=changes)
    else:
        stack = layers_with(*typed, reference)
    found = settings_of(stack)
    assert found["optim.lr"] == pytest.approx(1e-4 * found["model.global_batch_size"])
    assert found["model.global_batch_size"] == 32


@pytest.mark.parametrize(
    "words",
    [
        ("model.optim.sched.name=CosineAnnealing", "schedule.decay_style=linear"),
        ("model.optim.sched.warmup_steps=4", "optim.warmup_steps=2"),
    ],
)
def test_words_that_differ_are_refused_if_nemos_decides_further_settings(words):
    with pytest.raises(UsageError, match="set one setting to different values"):
        over(FOLDER / "launcher.yaml", *words)


def test_what_follows_from_a_word_with_a_reference_names_the_reference(layers_with):
    entry = layers_with("~model.ffn_hidden_size", "model.hidden_size=${model.num_layers}").entry
    of_word = "${model.num_layers} (command line)"
    assert entry("model.hidden_size").place == of_word
    assert entry("model.ffn_hidden_size").place == f"model.hidden_size=8 ({of_word})"


@pytest.mark.parametrize("word", ["trainer.num_nodes=1", "training.trainer.num_nodes=1", "seed=5"])
def test_a_reference_names_a_key_that_a_file_beside_nemos_has_too(word, option):
    option("training/tiny", (FOLDER / "tiny.yaml").read_text())
    text = "# @package _global_\ntrainer: {num_nodes: 2}\noptim: {lr: 3e-4}\n"
    words = ["training=tiny", "+exp=a", "optimizer.lr=0.002", word]
    words += ["loss.z_weight=${optim.lr}", "average.ema=${trainer.num_nodes}"]
    folder = option("exp/a", text)
    layers = apply_overrides(primary_stack(Primary(name=None)), words, config_dir=folder)
    config = resolve(relaid(layers)).config
    assert config.loss.z_weight == config.optim.lr == 0.002
    assert config.average.ema == config.trainer.num_nodes == (2 if word == "seed=5" else 1)


def test_a_setting_that_keeps_the_batch_of_the_file_beside_words_of_maxtext_is_named(layers_with):
    words = ("per_device_batch_size=1", "model.rampup_batch_size=null")
    notes = [note for note in resolve(layers_with(*words)).notes if "max_val_samples" in note]
    assert [note.replace("training/", "") for note in notes] == [
        "trainer.max_val_samples=512 follows from model.global_batch_size=128 (launcher.yaml:36), "
        "not from per_device_batch_size",
    ]
