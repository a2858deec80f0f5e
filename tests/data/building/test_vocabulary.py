from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from built_corpora import TEXTS, documents_of, texts_of, write_lines
from rampcli.data.building import build as building
from rampcli.data.building import records
from rampcli.data.building import vocabulary as making_tokenizers
from rampcli.data.building.build import build
from rampcli.data.building.streams import find_cut
from rampcli.data.indexed import tokenizer_of
from rampcli.data.tokenizer import END_OF_TEXT, open_tokenizer


def test_a_cut_after_a_line_changes_no_token_of_gpt_2(options):
    build(replace(options, tokenizer=None, train_bpe=280))
    tokenizer = open_tokenizer(tokenizer_of(options.output))
    text = "some words\n    indented\n\nand a paragraph\nwith lines\n" * 4
    cut = find_cut(text.encode())
    assert (
        tokenizer.encode(text[:cut]).ids + tokenizer.encode(text[cut:]).ids
        == tokenizer.encode(text).ids
    )


def test_text_that_looks_like_a_special_token_stays_text(options, tmp_path):
    build(replace(options, tokenizer=None, train_bpe=280))
    text = f"before {END_OF_TEXT} after"
    source = write_lines(tmp_path / "sly.jsonl", [text])
    sly = replace(
        options,
        inputs=(source,),
        output=tmp_path / "sly",
        tokenizer=str(tokenizer_of(options.output)),
    )
    build(sly)
    (tokens,) = documents_of(sly.output)
    assert [number for number, token in enumerate(tokens) if token == 0] == [len(tokens) - 1]
    assert texts_of(sly.output) == [text + END_OF_TEXT]


@pytest.mark.parametrize(("eod", "ends"), [(None, []), ("none", []), ("z", [122])])
def test_a_document_ends_with_the_requested_token(options, eod, ends):
    manifest = build(replace(options, eod=eod)).manifest
    assert documents_of(options.output)[0] == [*TEXTS[0].encode(), *ends]
    assert (manifest["eod"], manifest["eod_token"]) == ((122, "z") if ends else (None, None))


def test_merges_of_a_large_corpus_are_learnt_from_every_nth_chunk(options, monkeypatch, tmp_path):
    write_lines(tmp_path / "many.jsonl", ["seldom words here"] * 30 + ["others over there"] * 30)
    monkeypatch.setattr(
        building,
        "Reader",
        lambda inputs, text_key: records.Reader(inputs, text_key, chunk_bytes=64),
    )
    monkeypatch.setattr(making_tokenizers, "TRAINING_BYTES", 1000)
    many = replace(options, inputs=(tmp_path / "many.jsonl",), tokenizer=None, train_bpe=290)
    build(many)
    vocabulary = Tokenizer.from_file(str(tokenizer_of(many.output))).get_vocab()
    assert {"seldom", "others"} <= set(vocabulary)
