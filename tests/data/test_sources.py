import sysconfig
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from rampcli.data.corpus import Cut
from rampcli.data.order import SampleOrder
from rampcli.data.sources import is_held_out, open_corpora
from rampcli.errors import UsageError
from rampcli.settings.config import Config
from small_corpora import data_config

LIBRARY = Path(sysconfig.get_path("stdlib"))


def config(source="mock", **data):
    return data_config(source, **data)


@pytest.fixture(scope="session")
def library():
    return open_corpora(config(source="stdlib"))


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
    made = config(source="stdlib")
    made.model.vocab_size = 255
    with pytest.raises(UsageError) as refusal:
        open_corpora(made)
    assert "the tokenizer of data.source=stdlib has 256 tokens" in refusal.value.message
    assert "model.vocab_size" in refusal.value.keys
    assert refusal.value.remedy == "model.vocab_size=256 or null"


def test_more_validation_samples_than_the_corpus_has_are_refused():
    made = config()
    made.trainer.val_samples = 2**40 + 1
    with pytest.raises(UsageError) as refusal:
        open_corpora(made)
    assert f"needed: {2**40 + 1:,}" in refusal.value.message
    assert refusal.value.keys == ("trainer.val_samples", "data.sequence_length")


def test_a_sample_longer_than_the_corpus_is_refused():
    with pytest.raises(
        UsageError, match=r"the training corpus of data\.source=stdlib has 0 samples"
    ):
        open_corpora(config(source="stdlib", sequence_length=10**9))


def test_mock_corpora_follow_the_settings_and_validation_differs_from_training():
    made = config(sequence_length=9)
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
    for corpus in corpora_in(open_corpora(config(source=source, sequence_length=9, **switches))):
        assert corpus.cut == Cut(
            sequence_length=9, vocab_size=Config().model.vocab_size, **switches
        )


def test_training_is_shuffled_with_the_seed_and_validation_is_in_order():
    made = config()
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
    made = config(source="text", blend=blend, split=[1, 1, 0], sequence_length=10)
    made.trainer.val_samples = 8
    assert len(open_corpora(made).validation[None].read(np.arange(8)).tokens) == 8
    made.trainer.val_samples = 9
    with pytest.raises(UsageError, match=r"has 4 samples of .*; needed: 5") as refusal:
        open_corpora(made)
    for key in ("data.sequence_length", "trainer.val_samples", "data.validation_path=PATH"):
        assert key in refusal.value.remedy


def test_a_corpus_of_one_document_leaves_no_validation_samples(tmp_path):
    (tmp_path / "text").write_text("x" * 100)
    made = config(source="text", path=str(tmp_path / "text"), sequence_length=10)
    made.trainer.val_samples = 1
    with pytest.raises(UsageError, match=r"the validation corpus of .* has 0 samples"):
        open_corpora(made)
    made.trainer.val_samples = 0
    assert open_corpora(made).training.corpora[0].windows == 9


def test_no_two_seeds_share_a_mock_corpus():
    prints = []
    for seed in range(20):
        made = config()
        made.seed = seed
        prints += [corpus.fingerprint for corpus in corpora_in(open_corpora(made))]
    assert len(set(prints)) == 40
