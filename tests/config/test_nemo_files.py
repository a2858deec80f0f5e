"""How files of NeMo and the words beside them become one configuration."""

import pytest

from rampcli.config.compose import apply_overrides, primary_of, primary_stack, relaid
from rampcli.config.groups import Primary
from rampcli.config.settings import leaves
from rampcli.planning.resolve import resolve
from tests.words.test_nemo_yaml import FOLDER

VARIABLES = ("data_dir=/data", "base_results_dir=/runs")


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
    assert typed.unread.unchanged == edited.unread.unchanged
    assert [one.partition("=")[0] for one in typed.unread.unsupported] == ["model.hidden_dropout"]


def test_words_mean_the_same_at_once_and_one_after_another(layers_with):
    words = [*CHANGED, "optim.min_lr=${optim.lr}", "seed=5"]
    at_once = one_by_one = layers_with()
    at_once = apply_overrides(at_once, words)
    for word in words:
        one_by_one = apply_overrides(one_by_one, [word])
    one_by_one = relaid(one_by_one)
    assert settings_of(one_by_one) == settings_of(at_once)
    assert one_by_one.unread == at_once.unread
