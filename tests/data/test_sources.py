import sysconfig
from pathlib import Path

import numpy as np
import pytest

from rampcli.config.schema import Config, DataSource
from rampcli.data.sources import is_held_out, open_corpora
from rampcli.errors import UsageError

LIBRARY = Path(sysconfig.get_path("stdlib"))


def config(**data):
    made = Config()
    made.data.source = DataSource.mock
    for name, value in data.items():
        setattr(made.data, name, value)
    return made


@pytest.fixture(scope="session")
def library():
    return open_corpora(config(source=DataSource.stdlib))


def source_of(name):
    return (LIBRARY / name).read_bytes()


def test_the_librarys_source_is_read_and_a_tenth_of_it_held_out(library):
    training, validation = (corpus.data.tobytes() for corpus in library)
    for name in ("argparse.py", "json/decoder.py", "os.py", "typing.py", "ast.py"):
        inside, outside = (validation, training) if is_held_out(name) else (training, validation)
        assert source_of(name) in inside
        assert source_of(name) not in outside
    assert 0.02 < len(validation) / (len(training) + len(validation)) < 0.25


def test_a_tenth_of_many_names_is_held_out_and_a_name_always_falls_alike():
    names = [f"package/module_{number}.py" for number in range(5000)]
    held_out = [is_held_out(name) for name in names]
    assert held_out == [is_held_out(name) for name in names]
    assert 420 < sum(held_out) < 580


def test_tests_and_caches_of_the_library_are_left_out(library):
    folders = [LIBRARY / "test", LIBRARY / "site-packages"]
    left_out = [path for folder in folders for path in sorted(folder.glob("*/*.py"))[:200:40] if path.stat().st_size > 2000]
    together = b"".join(corpus.data.tobytes() for corpus in library)
    assert not any(path.read_bytes() in together for path in left_out)


def test_documents_of_the_library_are_whole_files(library):
    for name in ("argparse.py", "json/decoder.py", "os.py"):
        corpus = library[is_held_out(name)]
        first = corpus.data.tobytes().index(source_of(name))
        assert corpus.starts[first]
        assert not corpus.starts[first + 1 : first + len(source_of(name))].any()


def test_a_vocabulary_too_small_for_bytes_is_refused():
    made = config(source=DataSource.stdlib)
    made.model.vocab_size = 255
    with pytest.raises(UsageError) as refusal:
        open_corpora(made)
    assert refusal.value.keys == ("model.vocab_size",)
    assert refusal.value.remedy == "model.vocab_size=256"


def test_more_validation_samples_than_there_are_are_refused():
    made = config()
    made.trainer.val_samples = 2**40 + 1
    with pytest.raises(UsageError) as refusal:
        open_corpora(made)
    assert refusal.value.message == (
        f"the validation corpus of data.source=mock has {2**40} samples of data.sequence_length=128; {2**40 + 1} are wanted"
    )
    assert refusal.value.keys == ("data.sequence_length", "trainer.val_samples")


def test_a_sample_longer_than_the_corpus_is_refused():
    with pytest.raises(UsageError, match=r"the training corpus of data\.source=stdlib has 0 samples"):
        open_corpora(config(source=DataSource.stdlib, sequence_length=10**9))


def test_mock_corpora_follow_the_settings_and_validation_is_not_training():
    made = config(sequence_length=9)
    made.model.vocab_size = 77
    training, validation = open_corpora(made)
    assert (training.vocab_size, training.sequence_length) == (validation.vocab_size, validation.sequence_length) == (77, 9)
    assert training.fingerprint != validation.fingerprint
    assert not np.array_equal(training.read(np.arange(4))[0], validation.read(np.arange(4))[0])


def test_no_two_seeds_share_a_mock_corpus():
    prints = []
    for seed in range(20):
        made = config()
        made.seed = seed
        prints += [corpus.fingerprint for corpus in open_corpora(made)]
    assert len(set(prints)) == 40
