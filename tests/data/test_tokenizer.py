import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence, Strip
from tokenizers.models import BPE

from chat_folders import make_tokenizer
from rampcli.data import tokenizer as tokenizers
from rampcli.data.tokenizer import (
    END_OF_TEXT,
    byte_tokenizer,
    character_tokenizer,
    continuation,
    encoder_of,
    open_tokenizer,
    special_tokens_in_text,
    stream_text,
    train_bpe,
    usual_end_of_document,
    vocab_size_of,
)
from rampcli.errors import UsageError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


THOUSANDFOLD = normalizers.Replace("a", "a" * 1000)


@pytest.mark.parametrize(
    ("part", "growing"),
    [
        ("normalizer", THOUSANDFOLD),
        ("normalizer", normalizers.Sequence([normalizers.NFC(), *[THOUSANDFOLD] * 3])),
        ("normalizer", normalizers.Replace(Regex("[ab]"), "a" * 1000)),
        ("normalizer", normalizers.Prepend("a" * 1000)),
        ("decoder", decoders.Sequence([decoders.Replace("a", "a" * 1000), decoders.Fuse()])),
        ("model", models.BPE(vocab={"a": 0}, merges=[], end_of_word_suffix="a" * 1000)),
    ],
)
def test_a_tokenizer_that_would_grow_a_text_beyond_memory_is_refused(tmp_path, part, growing):
    tokenizer = byte_tokenizer()
    setattr(tokenizer, part, growing)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match="characters for one character of a text; at most 64"):
        open_tokenizer(tmp_path / "tokenizer.json")


def test_usual_normalizers_and_decoders_are_not_refused(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.Replace(Regex(" {2,}"), "\u2581"),
            normalizers.Replace("...", "\u2026"),
            normalizers.Prepend("\u2581"),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    open_tokenizer(tmp_path / "tokenizer.json")


@settings(max_examples=30)
@given(text=texts)
def test_the_fast_path_for_bytes_equals_the_tokenizer(text):
    tokenizer = byte_tokenizer()
    (tokens,) = encoder_of(tokenizer)([text])
    assert (
        tokens.tolist()
        == tokenizer.encode(text, add_special_tokens=False).ids
        == list(text.encode())
    )
    assert tokenizer.decode(tokens.tolist()) == text


@settings(max_examples=30)
@given(text=texts, more=texts)
def test_the_fast_path_for_characters_equals_the_tokenizer(text, more):
    tokenizer = character_tokenizer(text + more + "x")
    (tokens,) = encoder_of(tokenizer)([text])
    assert tokens.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(tokens.tolist()) == text


def test_both_fast_paths_are_used_for_a_tokenizer_from_a_file(tmp_path):
    for tokenizer in (byte_tokenizer(), character_tokenizer("ab\n ")):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        read = open_tokenizer(tmp_path / "tokenizer.json")
        assert (
            encoder_of(read).__qualname__
            == encoder_of(tokenizer).__qualname__
            != encoder_of(train_bpe(iter(["a"]), 257)).__qualname__
        )


def test_tokens_of_characters_are_in_the_order_of_code_points():
    assert character_tokenizer("bca\nb").get_vocab() == {"\n": 0, "a": 1, "b": 2, "c": 3}


def test_an_unknown_character_is_named():
    with pytest.raises(UsageError, match="no character 'ü'"):
        encoder_of(character_tokenizer("ab"))(["ab", "aüb"])


def test_a_tokenizer_that_only_resembles_characters_takes_the_slow_path():
    tokenizer = character_tokenizer("ab ")
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.model = models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    assert [tokens.tolist() for tokens in encoder_of(tokenizer)(["a b ab"])] == [[0, 1, 2]]


def test_learning_merges_is_deterministic_and_text_round_trips():
    corpus = ["the cat sat on the mat\n" * 20, "é漢字 the end" * 9]
    first, second = (train_bpe(iter(corpus), 300) for _ in range(2))
    assert first.to_str() == second.to_str()
    assert first.token_to_id(END_OF_TEXT) == 0
    assert usual_end_of_document(first) == END_OF_TEXT
    text = "a cat that was never there: \x00 ü 🙂\r\n"
    (tokens,) = encoder_of(first)([text])
    assert first.decode(tokens.tolist()) == text


def test_truncation_and_padding_of_a_tokenizer_file_are_ignored(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=10)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    read = open_tokenizer(tmp_path / "tokenizer.json")
    assert read.encode("abc").ids == [97, 98, 99]


def test_the_vocabulary_size_includes_gaps():
    assert vocab_size_of(Tokenizer(models.WordLevel({"a": 0, "b": 41}))) == 42


@pytest.mark.parametrize("tokens", [[], ["</s>", "<eos>"]])
def test_an_end_of_document_token_is_not_guessed_if_it_is_missing_or_ambiguous(tokens):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(tokens)
    assert usual_end_of_document(tokenizer) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff\xfe",
        b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
    ],
)
def test_a_damaged_tokenizer_file_gives_one_error(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UsageError, match="is not a tokenizer"):
        open_tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_tokenizer_file_and_one_without_tokens_give_errors(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        open_tokenizer(tmp_path / "none.json")
    Tokenizer(models.BPE()).save(str(tmp_path / "empty.json"))
    with pytest.raises(UsageError, match="without tokens"):
        open_tokenizer(tmp_path / "empty.json")


def test_transformers_reads_the_tokenizer_of_characters(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import PreTrainedTokenizerFast
    character_tokenizer("helo wrd").save(str(tmp_path / "tokenizer.json"))
    read = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert (
        read.decode(read("hello world")["input_ids"], clean_up_tokenization_spaces=False)
        == "hello world"
    )
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["type"] == "WordLevel"


def test_tokens_of_a_slow_tokenizer_are_integers_also_for_empty_texts():
    empty, full = encoder_of(train_bpe(iter(["ab"]), 257))(["", "ab"])
    assert (len(empty), empty.dtype, full.dtype) == (0, np.int64, np.int64)


def test_special_tokens_in_the_vocabulary_of_a_model_are_found():
    words = Tokenizer(models.WordLevel({"a": 0, "<eos>": 1}, unk_token="a"))
    words.add_special_tokens(["<eos>"])
    assert special_tokens_in_text(words) == ["<eos>"]
    assert special_tokens_in_text(train_bpe(iter(["ab <|endoftext|>"] * 9), 280)) == []


def written(path, **changes):
    """Returns a byte tokenizer with some of its fields replaced."""
    path.write_text(json.dumps(json.loads(byte_tokenizer().to_str()) | changes))
    return path


def test_a_tokenizer_that_is_not_a_file_or_too_large_is_refused_without_waiting(
    tmp_path, monkeypatch
):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match=f"cannot read {path}: not a regular file"):
            open_tokenizer(path)
    monkeypatch.setattr(tokenizers, "MOST_TOKENIZER_BYTES", 1000)
    with pytest.raises(UsageError, match="larger than 1,000 bytes"):
        open_tokenizer(written(tmp_path / "large.json"))


def test_a_panic_of_the_library_gives_one_message_and_no_other_output(tmp_path, capfd):
    sly = "\x1b[2J"
    path = written(
        tmp_path / "panics.json", normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    )
    with pytest.raises(UsageError, match="is not a tokenizer: Precompiled"):
        open_tokenizer(path)
    path = written(tmp_path / "sly.json", pre_tokenizer={"type": sly})
    with pytest.raises(UsageError, match="is not a tokenizer") as refused:
        open_tokenizer(path)
    assert "\x1b" not in str(refused.value)
    assert capfd.readouterr() == ("", "")


def test_output_written_during_a_library_call_is_printed_after_it(capfd):
    with tokenizers.failing_as("it fails"):
        os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "a warning\n"


def test_a_keyboard_interrupt_in_the_library_is_passed_on():
    with pytest.raises(KeyboardInterrupt), tokenizers.failing_as("it fails"):
        raise KeyboardInterrupt


def test_special_tokens_that_cannot_be_encoded_give_one_error():
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["<s>"])
    with pytest.raises(UsageError, match="cannot encode its own special tokens"):
        special_tokens_in_text(tokenizer)


@settings(max_examples=30)
@given(text=texts)
def test_the_bytes_of_tokens_add_up_to_the_bytes_of_the_text(text):
    bpe = train_bpe(iter([text, "the cat sat"]), 300)
    for tokenizer in (byte_tokenizer(), character_tokenizer(text + "x"), bpe):
        counts = tokenizers.bytes_of_tokens(tokenizer, vocab_size=300 + len(text))
        (tokens,) = encoder_of(tokenizer)([text])
        assert counts[tokens].sum() == len(text.encode())


def test_special_tokens_and_tokens_that_a_tokenizer_lacks_stand_for_no_bytes():
    bpe = train_bpe(iter(["the cat sat on the mat"]), 270)
    bpe.add_tokens(["ü-ü"])
    counts = tokenizers.bytes_of_tokens(bpe, vocab_size=300)
    assert counts[bpe.token_to_id(END_OF_TEXT)] == 0
    assert counts[bpe.token_to_id("ü-ü")] == 5
    assert counts[vocab_size_of(bpe) :].sum() == 0
    assert len(tokenizers.bytes_of_tokens(bpe, vocab_size=10)) == 10


def test_the_bytes_of_tokens_of_other_tokenizers_are_unknown():
    words = Tokenizer(models.WordLevel({"the": 0, "cat": 1}, unk_token="the"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    assert tokenizers.bytes_of_tokens(words, vocab_size=2) is None


def llama_2():
    """Returns a tokenizer that writes bytes for unknown characters and drops the first space."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581a", "\u2581", "a", "bc"]
    tokenizer = Tokenizer(
        BPE({word: number for number, word in enumerate(words)}, [], byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = Sequence(
        [Replace("\u2581", " "), ByteFallback(), Fuse(), Strip(content=" ", left=1)]
    )
    return tokenizer


TOKENIZERS = {"Llama 2": llama_2(), "byte-level BPE": make_tokenizer(), "bytes": byte_tokenizer()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=st.tuples(*2 * [st.text("abc \u00e9\u20ac\U0001f600", max_size=9)]))
def test_the_pieces_of_a_text_are_the_text(name, texts):
    tokenizer = TOKENIZERS[name]
    before, tokens = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
    for after in ([], before):
        whole = tokenizer.decode([*after, *tokens])
        assert continuation(tokens, tokenizer, after=after) == whole[len(tokenizer.decode(after)) :]
        pieces = "".join(stream_text(tokens, tokenizer, after=after))
        assert pieces == continuation(tokens, tokenizer, after=after)


def test_a_character_is_shown_once_all_of_its_bytes_are_known():
    tokenizer = TOKENIZERS["Llama 2"]
    euro = [1 + byte for byte in "\u20ac".encode()]
    assert [*stream_text([*euro, 257], tokenizer, after=[])] == ["\u20ac", " a"]
    assert continuation([257], tokenizer, after=[257]) == " a"
    assert continuation([257], tokenizer, after=[]) == "a"
