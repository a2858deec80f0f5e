"""Nulls in place of the vocabulary and the validation samples become numbers before a plan."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.config import snapshot
from rampcli.config.file_facts import MULTIPLE, PADDED_FROM, FileFacts, padded
from rampcli.config.layers import stack_of
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve
from rampcli.settings.config import Config
from rampcli.settings.model import MOST_VOCABULARY, ModelConfig


def open_config(**model):
    config = Config()
    config.optim.min_lr = 1e-5
    config.model.vocab_size = config.trainer.val_samples = None
    config.trainer.max_samples = 8
    config.model.global_batch_size = config.data.micro_batch_size = 1
    for name, value in model.items():
        setattr(config.model, name, value)
    return config


def settled(config, **facts):
    return resolve(config, read_files=lambda _: FileFacts(name="my.txt", **facts))


@given(tokens=st.integers(1, 300_000), tensor=st.integers(1, 16))
def test_a_padded_vocabulary_divides_over_ranks_and_small_ones_gain_no_idle_rows(tokens, tensor):
    size = padded(tokens, tensor=tensor)
    unit = tensor if tokens < PADDED_FROM else MULTIPLE * tensor
    assert size % unit == 0
    assert tokens <= size < tokens + unit


@pytest.mark.parametrize(("tokens", "size"), [(103, 103), (8192, 8192), (50_257, 50_304)])
def test_a_vocabulary_is_the_tokenizers_with_the_padding_of_gpt2(tokens, size):
    resolved = settled(open_config(), tokens=tokens, val_samples=1000)
    assert resolved.config.model.vocab_size == size
    note = f"vocabulary: {tokens:,} tokens"
    note += f", padded to model.vocab_size={size}" if size > tokens else ""
    assert resolved.notes == (note,)


@pytest.mark.parametrize(
    ("available", "used"), [(0, 0), (23, 23), (255, 255), (256, 256), (9**9, 256)]
)
def test_a_validation_takes_what_there_is_up_to_its_limit_and_a_note_says_if_it_is_less(
    available, used
):
    resolved = settled(open_config(vocab_size=256), tokens=256, val_samples=available)
    assert resolved.config.trainer.val_samples == used
    assert bool(resolved.notes) == (used < 256)
    assert all("validation" in note for note in resolved.notes)


def test_notes_of_a_validation_name_its_corpora_and_their_share():
    config = open_config(vocab_size=256)
    config.data.source, config.data.path = "text", "my.txt"
    (without,) = settled(config, tokens=256, val_samples=0).notes
    assert "the held-out part of my.txt (data.split=[99,1,0])" in without
    config.data.validation_path = "valid.txt"
    (few,) = settled(config, tokens=256, val_samples=3).notes
    assert few.endswith("valid.txt has no more")


def test_numbers_that_are_set_stay_as_they_are():
    config = open_config(vocab_size=300)
    config.trainer.val_samples = 7
    resolved = settled(config, tokens=103, val_samples=3, weights=200)
    assert (resolved.config.model.vocab_size, resolved.config.trainer.val_samples) == (300, 7)
    assert resolved.notes == ()


def test_weights_decide_the_vocabulary_and_must_have_all_tokens():
    folder = Path("runs/before")
    resolved = settled(open_config(), tokens=103, weights=256, folder=folder)
    assert resolved.config.model.vocab_size == 256
    assert stack_of(resolved.config).entry(ModelConfig.vocab_size).place == "weights in runs/before"
    with pytest.raises(UsageError) as refused:
        settled(open_config(), tokens=257, weights=256, folder=folder)
    assert "model.init_from=null" in refused.value.remedy


def test_a_tokenizer_larger_than_any_model_is_refused():
    with pytest.raises(UsageError) as refused:
        settled(open_config(), tokens=MOST_VOCABULARY + 1)
    assert refused.value.keys == ("model.vocab_size",)


def test_weights_that_do_not_divide_over_tensor_ranks_are_refused():
    config = open_config(num_attention_heads=4)
    config.parallel.tensor_parallel_size = config.trainer.devices = 2
    assert settled(config, tokens=103).config.model.vocab_size == 104
    with pytest.raises(UsageError) as refused:
        settled(config, tokens=103, weights=103)
    assert "model.vocab_size" in refused.value.keys


def test_files_are_not_read_if_something_else_is_wrong_and_all_errors_are_found():
    config = open_config()
    config.optim.min_lr, config.data.micro_batch_size = 1.0, 7
    with pytest.raises(UsageError) as refused:
        resolve(config, read_files=lambda _: pytest.fail("files were read"))
    assert {"optim.min_lr", "data.micro_batch_size"} <= {*refused.value.keys}


@pytest.mark.parametrize("key", ["model.vocab_size", "trainer.val_samples"])
def test_a_snapshot_has_numbers(key, tmp_path):
    section, name = key.split(".")
    (tmp_path / "config.yaml").write_text(f"{section}: {{{name}: null}}\n")
    with pytest.raises(UsageError) as refused:
        snapshot.read(tmp_path / "config.yaml")
    assert refused.value.keys == (key,)
