"""Inputs of `rampcli data build`, and the corpora built from them."""

import json
from itertools import pairwise
from pathlib import Path

from rampcli.data.building.partial import Watcher
from rampcli.data.indexed import IndexedFile, tokenizer_of
from rampcli.data.tokenizer import open_tokenizer

TEXTS = ["the cat sat on the mat", "", "a dog\nand a 漢字 🙂", "the end"]


def write_lines(path: Path, texts, *, key="text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({key: text}) + "\n" for text in texts))
    return path


def documents_of(prefix: Path) -> list[list[int]]:
    file = IndexedFile.open(prefix)
    return [
        file.tokens[first:end].tolist()
        for first, end in pairwise(file.token_offsets(0, file.documents))
    ]


def texts_of(prefix: Path) -> list[str]:
    tokenizer = open_tokenizer(tokenizer_of(prefix))
    return [tokenizer.decode(tokens, skip_special_tokens=False) for tokens in documents_of(prefix)]


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def interrupt_after(documents: int) -> Watcher:
    """Returns a watcher that raises KeyboardInterrupt once `documents` are written."""

    class Impatient(Watcher):
        def on_progress(self, _, written):
            if written is not None and written.documents >= documents:
                raise KeyboardInterrupt

    return Impatient()
