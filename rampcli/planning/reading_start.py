"""Where a phase begins to read its corpora.

A corpus that a phase reads as an earlier phase has read it, cut into the same samples, goes on in
the same order where it ended there. Other corpora begin an order of their own.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rampcli.batch.interleaving import count_by_share
from rampcli.batch.step_schedule import LENGTH_KEY
from rampcli.batch.training_plan import PhasePlan
from rampcli.settings.by_key import changing, flatten, leaves
from rampcli.settings.config import Config
from rampcli.settings.data import corpora_of
from rampcli.settings.facts import SAMPLES
from rampcli.settings.rl import is_rl


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusStart:
    """Where a phase begins to read a corpus.

    Attributes:
        phase: number of the phase in which the order of its samples began.
        corpus: number of the corpus among those of that phase.
        samples: samples of this order that earlier phases have read.
    """

    phase: int
    corpus: int
    samples: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadingStart:
    """Where a phase begins to read its corpora. The first phase begins at their first samples.

    Attributes:
        first_sample: samples of the run before these corpora were first read with these shares.
        corpora: where the order of each corpus is there; empty for a reader outside a run.
    """

    first_sample: int = 0
    corpora: tuple[CorpusStart, ...] = ()


FROM_THE_START = ReadingStart()
CorpusIdentity = tuple[object, ...]


class Readings:
    """The corpora that the phases of a run read, one phase after the other."""

    def __init__(self) -> None:
        self.orders: dict[CorpusIdentity, CorpusStart] = {}
        self.start = ReadingStart()
        self.interleaved: tuple[tuple[int, CorpusIdentity], ...] = ()

    def advance(self, config: Config, phase: PhasePlan) -> ReadingStart:
        """Returns where the next phase begins to read, and counts what it reads."""
        interleaved = tuple(_corpora_read(config))
        if interleaved != self.interleaved:
            starts = tuple(
                self.orders.get(identity, CorpusStart(phase=phase.number, corpus=at))
                for at, (_, identity) in enumerate(interleaved)
            )
            self.interleaved = interleaved
            self.start = ReadingStart(first_sample=phase.first.samples, corpora=starts)
        if phase.end is not None:
            counts = count_by_share(
                [share for share, _ in interleaved], phase.end.samples - self.start.first_sample
            )
            for (_, identity), start, count in zip(
                interleaved, self.start.corpora, counts, strict=True
            ):
                self.orders[identity] = replace(start, samples=start.samples + count)
        return self.start


def _corpora_read(config: Config) -> Iterator[tuple[int, CorpusIdentity]]:
    """Yields the share of each training corpus, and what decides the samples that it has.

    Prompts are whole, whatever the length of a sample.
    """
    values = dict(leaves(config)) | flatten({"data": config.data.extensions})
    cuts = [key for key in changing(SAMPLES) if key.startswith("data.")]
    cut = repr([values[key] for key in cuts if not (is_rl(config) and key == LENGTH_KEY)])
    seen: Counter[str] = Counter()
    for share, name in [(one, str(path)) for one, path in corpora_of(config)] or [(1, "")]:
        yield share, (cut, name, seen[name])
        seen[name] += 1
