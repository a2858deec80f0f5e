import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as run
from hypothesis import strategies as st
from tokenizers import Tokenizer

from rampcli.data.corpus import Cut
from rampcli.data.files import parts_of
from rampcli.data.order import Blend, SampleOrder
from rampcli.data.sources import fitting_words, is_held_out, larger_share, open_corpora
from rampcli.errors import UsageError
from rampcli.settings.config import Config
from remedies import offers
from small_corpora import config, data_config, refusal, token_corpus, write_files

LIBRARY = Path(sysconfig.get_path("stdlib"))


def of_source(source="mock", **data):
    return data_config(source, **data)


@pytest.fixture(scope="session")
def library():
    return open_corpora(of_source(source="stdlib"))


def source_of(name):
    return (LIBRARY / name).read_bytes()


def corpora_in(library):
    """Returns the only training corpus and the only validation corpus."""
    [training], [validation] = library.training.corpora, library.validation[None].corpora
    return training, validation


def test_the_standard_library_is_read_and_a_tenth_held_out(library):
    training, validation = (corpus.tokens.tobytes() for corpus in corpora_in(library))
    for name in ("argparse.py", "json/decoder.py", "os.py", "typing.py", "ast.py"):
        inside, outside = (validation, training) if is_held_out(name) else (training, validation)
        assert source_of(name) in inside
        assert source_of(name) not in outside
    assert 0.02 < len(validation) / (len(training) + len(validation)) < 0.25


def test_about_a_tenth_of_names_is_held_out_and_always_the_same_ones():
    names = [f"package/module_{number}.py" for number in range(5000)]
    held_out = [is_held_out(name) for name in names]
    assert held_out == [is_held_out(name) for name in names]
    assert 420 < sum(held_out) < 580


def test_tests_and_caches_of_the_standard_library_are_skipped(library):
    folders = [LIBRARY / "test", LIBRARY / "site-packages"]
    left_out = [
        path
        for folder in folders
        for path in sorted(folder.glob("*/*.py"))[:200:40]
        if path.stat().st_size > 2000
    ]
    together = b"".join(corpus.tokens.tobytes() for corpus in corpora_in(library))
    assert not any(path.read_bytes() in together for path in left_out)


def test_documents_of_the_standard_library_are_whole_files(library):
    for name in ("argparse.py", "json/decoder.py", "os.py"):
        corpus = corpora_in(library)[is_held_out(name)]
        first = corpus.tokens.tobytes().index(source_of(name))
        starts = set(corpus.documents.tolist())
        assert first in starts
        assert not starts.intersection(range(first + 1, first + len(source_of(name))))


def test_the_standard_library_has_bytes_as_tokens_and_a_byte_tokenizer(library):
    tokenizer = Tokenizer.from_str(library.tokenizer)
    read = library.training.read(np.array([3])).tokens[0]
    assert tokenizer.decode(read.tolist()).encode() == bytes(read.tolist())


def test_a_vocabulary_too_small_for_bytes_is_refused():
    made = of_source(source="stdlib")
    made.model.vocab_size = 255
    with pytest.raises(UsageError) as refusal:
        open_corpora(made)
    assert "the tokenizer of data.source=stdlib has 256 tokens" in refusal.value.message
    assert "model.vocab_size" in refusal.value.keys
    assert refusal.value.remedy == "model.vocab_size=256 or null"


def test_more_validation_samples_than_the_corpus_has_are_refused():
    made = of_source()
    made.trainer.val_samples = 2**40 + 1
    with pytest.raises(UsageError) as refusal:
        open_corpora(made)
    assert f"needed: {2**40 + 1:,}" in refusal.value.message
    assert refusal.value.keys == ("trainer.val_samples", "data.sequence_length")


def test_a_sample_longer_than_the_corpus_is_refused():
    with pytest.raises(
        UsageError, match=r"the training corpus of data\.source=stdlib has 0 samples"
    ):
        open_corpora(of_source(source="stdlib", sequence_length=10**9))


def test_mock_corpora_follow_the_settings_and_validation_differs_from_training():
    made = of_source(sequence_length=9)
    made.model.vocab_size = 77
    corpora = open_corpora(made)
    training, validation = corpora_in(corpora)
    assert training.cut == validation.cut == Cut(sequence_length=9, vocab_size=77)
    assert training.fingerprint != validation.fingerprint
    assert not np.array_equal(
        training.read(np.arange(4)).tokens, validation.read(np.arange(4)).tokens
    )
    assert corpora.tokenizer is None


@pytest.mark.parametrize("source", ["mock", "stdlib"])
def test_every_source_is_cut_into_samples_according_to_the_settings(source):
    switches = {"eod_mask_loss": True, "document_mask": True, "pad_last_window": True}
    for corpus in corpora_in(open_corpora(of_source(source=source, sequence_length=9, **switches))):
        assert corpus.cut == Cut(
            sequence_length=9, vocab_size=Config().model.vocab_size, **switches
        )


def test_training_is_shuffled_with_the_seed_and_validation_is_in_order():
    made = of_source()
    made.seed = 5
    corpora = open_corpora(made)
    samples = np.arange(8)
    assert np.array_equal(
        corpora.training.locate(samples)[1], SampleOrder(windows=2**40, seed=5).windows_of(samples)
    )
    assert np.array_equal(corpora.validation[None].locate(samples)[1], samples)


def test_validation_samples_of_a_blend_are_counted_for_each_of_its_corpora(tmp_path):
    (tmp_path / "held_out").mkdir()
    for name, size in (("train", 100), ("validate", 41)):
        (tmp_path / "held_out" / name).write_text("x" * size)
    blend = ["1", str(tmp_path / "held_out"), "1", str(tmp_path / "held_out")]
    made = of_source(source="text", blend=blend, split=[1, 1, 0], sequence_length=10)
    made.trainer.val_samples = 8
    assert len(open_corpora(made).validation[None].read(np.arange(8)).tokens) == 8
    made.trainer.val_samples = 9
    with pytest.raises(UsageError, match=r"has 4 samples of .*; needed: 5") as refusal:
        open_corpora(made)
    for key in ("data.sequence_length", "trainer.val_samples", "data.validation_path=PATH"):
        assert key in refusal.value.remedy


def test_a_corpus_of_one_document_leaves_no_validation_samples(tmp_path):
    (tmp_path / "text").write_text("x" * 100)
    made = of_source(source="text", path=str(tmp_path / "text"), sequence_length=10)
    made.trainer.val_samples = 1
    with pytest.raises(UsageError, match=r"the validation corpus of .* has 0 samples"):
        open_corpora(made)
    made.trainer.val_samples = 0
    assert open_corpora(made).training.corpora[0].windows == 9


def test_no_two_seeds_share_a_mock_corpus():
    prints = []
    for seed in range(20):
        made = of_source()
        made.seed = seed
        prints += [corpus.fingerprint for corpus in corpora_in(open_corpora(made))]
    assert len(set(prints)) == 40


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
