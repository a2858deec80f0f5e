"""What a refusal of a short corpus advises works, and is the most that works."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.data.corpus import Cut
from rampcli.data.files import parts_of
from rampcli.data.order import Blend
from rampcli.data.sources import open_corpora
from rampcli.data.windows import fitting_words, larger_share
from rampcli.errors import UsageError
from remedies import offers
from small_corpora import config, refusal, token_corpus, write_files


def corpus_of(lengths, *, sequence_length):
    documents = [np.zeros(length, np.uint8) for length in lengths]
    return token_corpus(documents, cut=Cut(sequence_length=sequence_length, vocab_size=1))


@given(tokens=st.integers(2, 60), length=st.integers(1, 60), samples=st.integers(1, 9))
def test_the_longest_sequence_gives_the_samples_and_a_longer_one_does_not(tokens, length, samples):
    corpus = corpus_of([tokens], sequence_length=length)
    longest = corpus.longest_sequence(samples)
    assert (length <= longest) == (corpus.windows >= samples)


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    shares=st.lists(st.integers(1, 5), min_size=4, max_size=4),
    limit=st.integers(0, 60),
)
def test_most_samples_are_all_that_the_windows_of_a_blend_allow(sizes, shares, limit):
    corpora = [corpus_of([size + 1], sequence_length=1) for size in sizes]
    blend = Blend(corpora, shares[: len(sizes)], seed=None)
    most = blend.most_samples(limit)

    def fits(samples):
        return all(n <= size for n, size in zip(blend.counts(samples), sizes, strict=True))

    assert fits(most)
    assert most == limit or not fits(most + 1)


def test_the_numbers_of_a_refused_validation_work_when_typed(tmp_path):
    made = config(path=write_files(tmp_path / "mine", [[1] * 60] * 20), sequence_length=10)
    made.trainer.val_samples = 100
    samples, shorter, *_ = offers(refusal(made))
    made.trainer.val_samples = samples["trainer.val_samples"]
    open_corpora(made)
    made.trainer.val_samples += 1
    assert refusal(made)
    made.trainer.val_samples, made.data.sequence_length = 100, shorter["data.sequence_length"]
    open_corpora(made)


def test_a_short_corpus_for_validation_is_refused_with_the_setting_that_names_it(tmp_path):
    made = config(path=write_files(tmp_path / "mine", [[1] * 60]), sequence_length=10)
    made.data.validation_path = write_files(tmp_path / "held_out", [[1] * 5])
    made.trainer.val_samples = 1
    assert refusal(made).keys[0] == "data.validation_path"


def test_the_length_of_a_refused_training_works_when_typed_on_any_mesh(tmp_path):
    made = config(path=write_files(tmp_path / "mine", [[1] * 52]), split=[1, 0, 0])
    made.data.sequence_length, made.parallel.context_parallel_size = 100, 2
    made.data.sequence_length = offers(refusal(made))[0]["data.sequence_length"]
    assert made.data.sequence_length == 48
    open_corpora(made)


def test_a_validation_without_samples_is_offered_a_split_that_has_some(tmp_path):
    path = write_files(tmp_path / "mine", [[1] * 20] * 8)
    made = config(path=path, split=[99, 1, 0], sequence_length=10)
    made.trainer.val_samples = 1
    offered = next(offer for offer in offers(refusal(made)) if "data.split" in offer)
    assert offered == {"data.split": [90, 10, 0], "trainer.val_samples": None}
    made.data.split = [90, 10, 0]
    open_corpora(made)


@run(suppress_health_check=[HealthCheck.filter_too_much])
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12), length=st.integers(1, 30))
def test_a_larger_share_leaves_samples_for_training_and_validation(lengths, length):
    whole = corpus_of(lengths, sequence_length=length)
    assume((split := larger_share(Blend([whole]))) is not None)
    training, validation, _ = parts_of(whole, split)
    assert training.windows
    assert validation.windows


@pytest.mark.parametrize("size", [2, 3, 10, 129, 140, 300, 5000, 50_000, 100_000, 900_000])
def test_a_recipe_trains_and_validates_on_an_indexed_corpus_of_any_size(size, tmp_path):
    path = write_files(tmp_path / "mine", [[1] * size])
    made = config(path=path, split=[99, 1, 0], sequence_length=128)
    made.trainer.max_val_samples = 256
    for word in fitting_words(tmp_path / "mine", made):
        key, value = word.split("=")
        section, name = key.split(".")
        setattr(getattr(made, section), name, json.loads(value))
    held_out = open_corpora(made).validation[None].corpora[0].windows
    assert (size < 300) == (held_out == 0)
    assert size < 300 or held_out * 4 >= made.trainer.max_val_samples
    assert size < 50_000 or held_out >= 32


def test_a_corpus_of_one_token_is_refused_without_advice_that_fails(tmp_path):
    with pytest.raises(UsageError) as refused:
        open_corpora(config(path=write_files(tmp_path / "mine", [[1]]), split=[1, 0, 0]))
    assert refused.value.keys == ("data.path",)
    assert "sequence_length" not in refused.value.remedy
