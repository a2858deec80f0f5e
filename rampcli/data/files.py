"""Corpora from files: text is read into memory, indexed tokens are memory-mapped."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rampcli.data.corpus import Cut, TokenCorpus
from rampcli.data.indexed import IndexedFile, bin_of, manifest_of, read_manifest, tokenizer_of
from rampcli.data.order import Blend, Corpora
from rampcli.data.special_tokens import (
    NONE_KNOWN,
    SpecialTokens,
    read_special_tokens,
    tokenizer_path,
)
from rampcli.data.texts import read_texts
from rampcli.data.tokenizer import (
    byte_tokenizer,
    character_tokenizer,
    encoder_of,
    open_tokenizer,
    vocab_size_of,
)
from rampcli.errors import UsageError, naming_setting, set_to
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig, corpora_of, paths_of, validation_paths
from rampcli.settings.model import MOST_VOCABULARY, ModelConfig

PROBES, PROBE_BYTES = 64, 4096


def cut_of(config: Config) -> Cut:
    """Returns how a configuration cuts tokens into samples.

    A vocabulary that is not known yet has all tokens that a model can have.
    """
    data = config.data
    return Cut(
        sequence_length=data.sequence_length,
        vocab_size=config.model.vocab_size or MOST_VOCABULARY,
        eod_mask_loss=data.eod_mask_loss,
        document_mask=data.document_mask,
        pad_last_window=data.pad_last_window,
    )


def open_text(config: Config) -> Corpora:
    """Reads and encodes text files.

    Raises:
        UsageError: a file is missing or not text, or the model's vocabulary is too small.
    """
    texts, paths = {}, paths_of(config)
    for path, key in paths.items():
        with naming_setting(key):
            texts[path] = read_texts(path)
            if not any(texts[path]):
                raise UsageError(f"{path} has no text", remedy="a file or folder with text")

    def alphabet() -> set[str]:
        # A resume may name other corpora for validation, and must not change the tokens.
        kept = (texts[path] for path, key in paths.items() if key != DataConfig.validation)
        return {character for documents in kept for text in documents for character in set(text)}

    tokenizer, special_tokens, _ = open_named_tokenizer(config.data.tokenizer, alphabet)
    # The saved tokenizer also reads prompts, in which special tokens are allowed.
    saved = tokenizer.to_str()
    tokenizer.encode_special_tokens = True
    encode, cut = encoder_of(tokenizer), cut_of(config)
    training, validation = _open_all(
        config, lambda path: in_memory(str(path), encode(texts[path]), cut, tokenizer)
    )
    return Corpora(
        training=training,
        validation=validation,
        tokenizer=saved,
        vocab_size=vocab_size_of(tokenizer),
        special_tokens=special_tokens,
    )


def open_named_tokenizer(
    name: str, alphabet: Callable[[], Iterable[str]]
) -> tuple[Tokenizer, SpecialTokens, Path | None]:
    """Opens the tokenizer of `data.tokenizer`.

    Args:
        name: value of the setting.
        alphabet: returns the characters of the corpora, which are the tokens of `chars`.

    Returns:
        The tokenizer, its special tokens and the folder of its file, if it has one.

    Raises:
        RampcliError: its file cannot be read or downloaded.
    """
    if name == "bytes":
        return byte_tokenizer(), NONE_KNOWN, None
    if name == "chars":
        return character_tokenizer(alphabet()), NONE_KNOWN, None
    path = tokenizer_path(name)
    with naming_setting(DataConfig.tokenizer):
        tokenizer = open_tokenizer(path)
    return tokenizer, read_special_tokens(path.parent, tokenizer), path.parent


def in_memory(
    name: str, documents: Sequence[NDArray[Any]], cut: Cut, tokenizer: Tokenizer | None
) -> TokenCorpus:
    """Concatenates documents of tokens into a corpus; empty documents are left out.

    Raises:
        UsageError: the model's vocabulary is smaller than the tokenizer's.
    """
    if tokenizer is not None:
        check_vocabulary(name, vocab_size_of(tokenizer), cut)
    documents = [document for document in documents if len(document)]
    tokens = np.concatenate(documents) if documents else np.empty(0, dtype=np.uint8)
    starts = np.cumsum([0, *map(len, documents)])[:-1]
    return TokenCorpus(
        name=name,
        tokens=tokens,
        documents=starts,
        first=0,
        end=len(tokens),
        cut=cut,
        contents=hashlib.sha256(tokens.tobytes() + starts.tobytes()).hexdigest(),
    )


def open_indexed(config: Config) -> Corpora:
    """Opens indexed files; reads their indices and samples across their tokens.

    Raises:
        UsageError: a file cannot be read, files have different tokenizers, or the model's
            vocabulary is too small.
    """
    cut = cut_of(config)
    tokenizers = {
        path: open_tokenizer(tokenizer_of(path)).to_str()
        for path in paths_of(config)
        if tokenizer_of(path).is_file()
    }
    first = next(iter(tokenizers), None)
    sizes = [vocab_size_of(Tokenizer.from_str(tokenizers[first]))] if first is not None else []
    for path, tokenizer in tokenizers.items():
        if first is not None and tokenizer != tokenizers[first]:
            raise UsageError(
                f"{tokenizer_of(path)} is a different tokenizer than {tokenizer_of(first)}",
                remedy=f"rampcli data build --tokenizer {tokenizer_of(first)} for all corpora",
            )

    def open_path(path: Path) -> TokenCorpus:
        corpus, size = open_prefix(path, cut)
        if size is not None:
            sizes.append(size)
        return corpus

    training, validation = _open_all(config, open_path)
    manifests = [read_manifest(path) for path in paths_of(config)]
    ends = [manifest["eod"] for manifest in manifests if manifest and manifest["eod"] is not None]
    return Corpora(
        training=training,
        validation=validation,
        tokenizer=None if first is None else tokenizers[first],
        vocab_size=max(sizes, default=None),
        special_tokens=NONE_KNOWN.ending_with(*ends),
    )


def open_prefix(prefix: Path, cut: Cut) -> tuple[TokenCorpus, int | None]:
    """Opens an indexed file; returns its corpus, and the size of its vocabulary if that is known.

    Raises:
        UsageError: as `open_indexed`.
    """
    file, size = IndexedFile.open(prefix), None
    manifest = read_manifest(prefix)
    if manifest is not None:
        said = manifest["files"]["bin"]["bytes"], manifest["tokens"], manifest["documents"]
        if said != (file.tokens.nbytes, len(file.tokens), file.documents):
            raise UsageError(
                f"{manifest_of(prefix)} does not belong to {bin_of(prefix)}",
                remedy="all files of one build",
            )
        size = max(manifest["vocab_size"], 1 + (manifest["largest_token"] or 0))
        check_vocabulary(str(prefix), size, cut)
    corpus = TokenCorpus(
        name=str(prefix),
        tokens=file.tokens,
        documents=file.document_starts(),
        unit=file.tokens.itemsize,
        first=0,
        end=len(file.tokens),
        cut=cut,
        contents=_hash_probes(file),
        check_unchanged=file.check_unchanged,
    )
    return corpus, size


def _hash_probes(file: IndexedFile) -> str:
    """Returns a hash of the size and of samples across the tokens; fast for files of any size."""
    probe = hashlib.sha256(
        repr((file.tokens.nbytes, file.documents, file.tokens.dtype.str)).encode()
    )
    per_probe = PROBE_BYTES // file.tokens.itemsize
    for place in np.linspace(
        0, max(0, len(file.tokens) - per_probe), PROBES, dtype=np.int64
    ).tolist():
        probe.update(file.tokens[place : place + per_probe].tobytes())
    return probe.hexdigest()


def _open_all(
    config: Config, open_path: Callable[[Path], TokenCorpus]
) -> tuple[Blend, dict[str | None, Blend]]:
    """Opens training and validation corpora: separate corpora, or parts of the same ones."""
    opened = {}
    for path, key in paths_of(config).items():
        with naming_setting(key):
            opened[path] = open_path(path)
    shares, paths = zip(*corpora_of(config), strict=True)
    training = [opened[path] for path in paths]
    held_out = {name: Blend([opened[path]]) for name, path in validation_paths(config).items()}
    if None not in held_out:
        parts = [parts_of(whole, config.data.split) for whole in training]
        training = [first for first, _, _ in parts]
        held_out = held_out or {None: Blend([second for _, second, _ in parts], shares)}
    return Blend(training, shares, seed=config.seed), held_out


def parts_of(whole: TokenCorpus, split: Sequence[float]) -> list[TokenCorpus]:
    """Splits a corpus into parts of whole documents, in their order.

    A corpus of a single document is cut between two tokens.

    Args:
        split: share of the documents in each part, or of the tokens of a single document; each
            boundary is rounded to the nearest.
    """
    shares = [Fraction(str(share)) for share in split]
    up_to = [share / sum(shares) for share in accumulate(shares)]
    if len(whole.documents) == 1:
        places = [whole.first + round((whole.end - whole.first) * share) for share in up_to]
    else:
        counts = [round(len(whole.documents) * share) for share in up_to]
        places = [
            int(whole.documents[count]) // whole.unit if count < len(whole.documents) else whole.end
            for count in counts
        ]
    return [
        replace(whole, first=first, end=end)
        for first, end in zip([whole.first, *places], places, strict=False)
    ]


def check_vocabulary(name: str, vocab_size: int, cut: Cut) -> None:
    """Checks that the model's vocabulary has all tokens of a tokenizer.

    Raises:
        UsageError: it is too small.
    """
    if vocab_size > cut.vocab_size:
        raise UsageError(
            f"the tokenizer of {name} has {vocab_size:,} tokens, more than"
            f" model.vocab_size={cut.vocab_size}",
            keys=(ModelConfig.vocab_size,),
            remedy=set_to(ModelConfig.vocab_size, vocab_size, None),
        )
