"""Documents that count: `data.source=counting`."""

from dataclasses import dataclass
from typing import Any

from rampcli.extend import Documents, data_source, setting


@dataclass(kw_only=True, slots=True)
class Counting:
    """The settings: `data.counting.documents` and `data.counting.numbers`."""

    documents: int = setting(200, "Number of documents.", unit="documents", at_least=10)
    numbers: int = setting(100, "Numbers in a document.", unit="numbers", at_least=2)


@data_source("counting", settings=Counting)
def counting(config: Any, settings: Counting) -> Documents:
    """Returns documents such as `7 8 9 10`, as bytes. One in ten is for validation."""
    import numpy as np

    from rampcli.data.tokenizer import byte_tokenizer

    texts = [
        " ".join(map(str, range(first, first + settings.numbers)))
        for first in range(config.seed, config.seed + settings.documents)
    ]
    arrays = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
    return Documents(
        training=[array for index, array in enumerate(arrays) if index % 10],
        validation=arrays[::10],
        tokenizer=byte_tokenizer().to_str(),
    )
