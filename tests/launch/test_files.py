"""Corpora, checkpoints and starting weights decide the vocabulary of a run."""

from dataclasses import replace

import pytest

from rampcli.cli.base import Base
from rampcli.cli.composing import compose_words
from rampcli.config.file_facts import FileFacts
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.errors import UsageError
from rampcli.launch.files import LONG_TO_ENCODE_BYTES, encoding_note
from rampcli.launch.run import check
from rampcli.runs.directory import RunDirectory
from run_files import leave_checkpoint
from small_corpora import numbered, write_files

TEXT = "".join(map(chr, range(200, 303))) * 50
"""A text of 103 characters."""


@pytest.fixture
def plan_own_text(tmp_path):
    (tmp_path / "mine.txt").write_text(TEXT, encoding="utf-8")

    def plan(*words):
        words = ["data.path=mine.txt", *words]
        return compose_words(Base(factory="shakespeare_char"), words, resumes=True)

    return plan


def test_a_text_decides_vocabulary_and_validation_samples(plan_own_text):
    config = plan_own_text().config
    assert config.model.vocab_size == 103
    assert config.trainer.val_samples == (len(TEXT) // 10 - 1) // config.data.sequence_length
    words = ["parallel.tensor_parallel_size=2", "trainer.devices=2", "data.micro_batch_size=6"]
    assert plan_own_text(*words).config.model.vocab_size == 104


@pytest.mark.parametrize(("saved", "used"), [(104, 104), (128, 128), (102, 103)])
def test_a_run_directory_keeps_its_vocabulary_unless_it_is_of_another_text(
    saved, used, plan_own_text
):
    run = RunDirectory(plan_own_text().run_dir)
    leave_checkpoint(run, settings={"model.vocab_size": saved})
    assert plan_own_text().config.model.vocab_size == used


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused_with_one_that_works(plan_own_text):
    with pytest.raises(UsageError) as refused:
        plan_own_text("model.vocab_size=65")
    assert refused.value.remedy == "model.vocab_size=103 or null"
    plan_own_text("model.vocab_size=103")
    plan_own_text("model.vocab_size=null")


def test_starting_weights_decide_the_vocabulary(plan_own_text, tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "config.yaml").write_text("model: {vocab_size: 110}\n")
    assert plan_own_text("model.init_from=weights").config.model.vocab_size == 110
    (tmp_path / "weights" / "config.yaml").write_text("model: {vocab_size: 65}\n")
    with pytest.raises(UsageError) as refused:
        plan_own_text("model.init_from=weights")
    assert "model.init_from" in refused.value.keys


def test_a_corpus_without_tokenizer_needs_a_number(tmp_path):
    path = f"data.path={write_files(tmp_path / 'megatron', numbered(300))}"
    words = ["data=indexed", path]
    with pytest.raises(UsageError) as refused:
        compose_words(Base(factory="llama3_tiny"), words)
    assert refused.value.keys[0] == "model.vocab_size"
    numbered_config = compose_words(Base(factory="llama3_tiny"), [*words, "model.vocab_size=300"])
    assert numbered_config.config.model.vocab_size == 300


def test_a_plan_needs_the_corpora_only_for_the_vocabulary():
    words = ["data=indexed", "data.path=elsewhere"]
    assert compose_words(Base(factory="llama3_8b"), words).config.trainer.val_samples == 512
    with pytest.raises(UsageError) as refused:
        compose_words(Base(factory="llama3_tiny"), words)
    assert "data.path" in refused.value.keys


def test_a_text_that_was_read_for_its_vocabulary_is_not_read_again_at_the_start(
    plan_own_text, tmp_path
):
    resolved = plan_own_text("trainer.num_nodes=1")
    (tmp_path / "mine.txt").unlink()
    check(resolved)
    with pytest.raises(UsageError, match=r"cannot read .*mine\.txt: No such file"):
        check(replace(resolved, phases=(replace(resolved.phases[0], files=FileFacts()),)))


def test_phases_whose_tokens_would_stand_for_other_characters_are_refused(plan_own_text, tmp_path):
    (tmp_path / "other.txt").write_text(TEXT.replace(TEXT[0], "x"), encoding="utf-8")
    (tmp_path / "backwards.txt").write_text(TEXT[::-1], encoding="utf-8")

    def plan(corpus, *words):
        phases = ("phases.a.until=steps:1", "phases.b.until=steps:2")
        return plan_own_text(*phases, f"phases.b.data.path={corpus}", *words)

    assert plan("backwards.txt").config.model.vocab_size == 103
    with pytest.raises(UsageError, match="phases a and b have different tokenizers") as refused:
        plan("other.txt")
    plan("other.txt", str(refused.value.remedies[0]))


def test_text_that_takes_long_to_encode_is_named_first(plan_own_text, tmp_path, capsys):
    (tmp_path / "tokens.json").write_text(byte_tokenizer().to_str())
    config = plan_own_text("data.tokenizer=tokens.json").config
    assert capsys.readouterr().err == ""
    with (tmp_path / "mine.txt").open("ab") as text:
        text.truncate(LONG_TO_ENCODE_BYTES)  # the zeros are refused once the note is printed
    note = "encoding mine.txt: 5.0 MB; `rampcli data build` would do that once"
    assert encoding_note(config) == note
    with pytest.raises(UsageError, match="is zero"):
        plan_own_text("data.tokenizer=tokens.json")
    assert capsys.readouterr().err == f"{note}\n"
    config.data.tokenizer = "chars"  # which numpy encodes
    assert encoding_note(config) is None


def test_all_files_of_a_folder_count_and_files_that_are_not_here_do_not(plan_own_text, tmp_path):
    config = plan_own_text().config
    config.data.tokenizer, config.data.path = "tokens.json", str(tmp_path / "texts")
    assert encoding_note(config) is None
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        (tmp_path / "texts" / name).write_bytes(bytes(LONG_TO_ENCODE_BYTES // 2))
    assert encoding_note(config).startswith(f"encoding {tmp_path / 'texts'}: 5.0 MB")
