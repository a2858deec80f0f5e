"""Small corpora, and configurations that read them."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from rampcli.data.corpus import IGNORED, TokenCorpus
from rampcli.data.examples import Example
from rampcli.data.indexed import (
    bin_of,
    idx_of,
    manifest_of,
    tokenizer_of,
    write_index,
)
from rampcli.data.pair_format import PairFormat
from rampcli.data.sources import open_corpora
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.errors import UsageError
from rampcli.settings.config import Config

VOCAB_SIZE = 300
BYTES = PairFormat(byte_tokenizer().to_str(), end=None, template=None)
"""Pairs as bytes, with a new line at the end of a response."""
LETTERS = "abcdefgh"
PAIRS = st.lists(
    st.tuples(st.text(LETTERS, min_size=1, max_size=5), st.text(LETTERS, max_size=5)), min_size=1
).map(tuple)
"""Pairs of short texts for `ListedExamples`."""


@dataclass(frozen=True)
class ListedExamples:
    """Examples from a list of prompts and responses."""

    pairs: tuple[tuple[str, str], ...]
    name: str = "listed"
    fingerprint: str = "listed"

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Example:
        prompt, response = self.pairs[index]
        return Example(prompt, response, {"prompt": prompt, "response": response})

    def place(self, index: int) -> str:
        return f"{self.name} {index}"


def token_corpus(documents, *, cut, name="made"):
    """Returns a corpus in memory of documents, which are arrays of tokens."""
    tokens, starts = np.concatenate(documents), np.cumsum([0, *map(len, documents)])
    return TokenCorpus(
        name=name,
        tokens=tokens,
        documents=starts[:-1],
        first=0,
        end=len(tokens),
        cut=cut,
        contents=str(tokens.tolist()),
    )


def data_config(source, **data):
    """Returns default settings with some of the section `data`."""
    made = Config()
    for name, value in {"source": source, **data}.items():
        setattr(made.data, name, value)
    return made


def config(source="indexed", **data):
    made = data_config(source, **{"sequence_length": 4, "split": [1, 1, 0]} | data)
    made.model.vocab_size, made.trainer.val_samples = VOCAB_SIZE, 0
    return made


def write_files(prefix, documents, kind="<u2", manifest=None, tokenizer=None):
    """Writes documents of tokens as PREFIX.bin and PREFIX.idx; returns PREFIX."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    np.array([token for document in documents for token in document], dtype=kind).tofile(
        bin_of(prefix)
    )
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    write_index(idx_of(prefix), np.dtype(kind), lambda: iter([lengths]))
    if manifest is not None:
        manifest_of(prefix).write_text(json.dumps(manifest_for(prefix, documents) | manifest))
    if tokenizer is not None:
        tokenizer_of(prefix).write_text(tokenizer)
    return str(prefix)


def manifest_for(prefix, documents):
    """Returns the manifest that `rampcli data build` would write for these files."""
    file = {"bytes": bin_of(prefix).stat().st_size, "sha256": ""}
    counts = {
        "documents": len(documents),
        "tokens": sum(map(len, documents)),
        "empty": 0,
        "skipped": 0,
        "text_bytes": 0,
    }
    options = {"inputs": [], "tokenizer": "words", "text_key": "text", "on_bad_record": "stop"}
    absent = dict.fromkeys(["eod", "eod_token", "tokenizer_sha256", "eod_option", "largest_token"])
    files = {"files": dict.fromkeys(["bin", "idx", "tokenizer"], file)}
    return {"format": 1, "vocab_size": VOCAB_SIZE} | counts | options | absent | files


def numbered(documents, length=9, first=0):
    """Returns documents that each repeat one token, so that a token identifies its document."""
    return [[first + number] * length for number in range(documents)]


def words(*vocabulary, **numbers):
    numbers = (
        {"[UNK]": 0} | {word: number for number, word in enumerate(vocabulary, start=1)} | numbers
    )
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def tokens_of(corpora):
    """Returns the tokens that a run trains on, and those that it validates on."""
    found = []
    for blend in (corpora.training, corpora.validation[None]):
        read = [corpus.read(np.arange(corpus.windows)) for corpus in blend.corpora]
        found.append(
            {
                int(token)
                for samples in read
                for token in np.unique([samples.tokens, samples.labels])
                if token != IGNORED
            }
        )
    return found


def refusal(made):
    with pytest.raises(UsageError) as refused:
        open_corpora(made)
    return refused.value
