"""How often a run reads each of its corpora.

A phase that cuts a corpus into other samples reads them in an order of its own, from the start. The
samples of two orders overlap at random, so which tokens both read is known only on average.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from rampcli.batch.interleaving import count_by_share
from rampcli.batch.quantities import MOST_NAMED, counted, listed, shorten
from rampcli.config.file_facts import CorpusFacts
from rampcli.config.phases import phases_named
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.settings.rl import is_rl, unit_of

MOST_PASSES = 5
"""Passes over a corpus above which a note is due. Up to four cost little (arXiv 2305.16264)."""
MOST_NOTES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusOrder:
    """What a run reads of a corpus in one order of its samples.

    Attributes:
        facts: the corpus, cut into the samples of this order.
        sequence_length: tokens per sample. A prompt counts as one, as its length is unknown.
        samples: samples that are read, or None if the run has no end.
        first_phase: phase in which the order begins, or None if it has no name.
    """

    facts: CorpusFacts
    sequence_length: int
    samples: int | None
    first_phase: str | None

    @property
    def passes(self) -> float:
        """How often each sample is read. It is infinite without an end."""
        return float("inf") if self.samples is None else self.samples / self.facts.samples

    @property
    def tokens(self) -> int:
        """Tokens of the corpus, in samples of this length."""
        return self.facts.samples * self.sequence_length


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusPasses:
    """A corpus of a run, and how often the run reads it.

    Attributes:
        orders: the orders in which its samples are read. A phase has one.
    """

    orders: tuple[CorpusOrder, ...]

    @property
    def facts(self) -> CorpusFacts:
        """The corpus, as it is cut where it is read first."""
        return self.orders[0].facts

    @property
    def passes(self) -> float | None:
        """How often each token is read on average, or None if the run has no end."""
        found = sum(one.passes for one in self.orders)
        return None if found == float("inf") else found

    @property
    def tokens(self) -> int:
        """Tokens of the corpus."""
        return max(one.tokens for one in self.orders)

    @property
    def distinct_tokens(self) -> int:
        """Tokens that are read at least once: exact in one order, and expected in several.

        The training part of a corpus begins with its first document in every order. So the first
        tokens are in all orders, and those at the end only in the longest.
        """
        found, start = 0.0, 0
        for end in sorted({one.tokens for one in self.orders}):
            unread = prod(1 - min(1.0, one.passes) for one in self.orders if one.tokens >= end)
            found += (end - start) * (1 - unread)
            start = end
        return round(found)

    @property
    def read_again_tokens(self) -> int | None:
        """Tokens that are read although they were read before; None if the run has no end."""
        if self.passes is None:
            return None
        read = sum((one.samples or 0) * one.sequence_length for one in self.orders)
        return read - self.distinct_tokens


def corpus_passes(resolved: Resolved, consumed_samples: int | None = None) -> list[CorpusPasses]:
    """Returns the training corpora of a run, as far as their files were read.

    Args:
        consumed_samples: samples of the run up to which passes are counted. None counts them all.
    """
    found: dict[str, list[CorpusOrder]] = {}
    for one in _corpus_orders(resolved, consumed_samples):
        found.setdefault(one.facts.name, []).append(one)
    return [CorpusPasses(orders=tuple(orders)) for orders in found.values()]


def passes_of_phase(resolved: Resolved, phase: ResolvedPhase) -> dict[str, float | None]:
    """Returns the passes of a run over the corpora of a phase, by name, up to its end.

    They are None if the phase has no end.
    """
    found = {one.facts.name: one.passes for one in corpus_passes(resolved, _end_of(phase))}
    return {one.name: found.get(one.name) for one in phase.files.corpora}


def _corpus_orders(resolved: Resolved, consumed_samples: int | None) -> Iterator[CorpusOrder]:
    """Yields the orders in which corpora are read, up to a sample of the run."""
    found: dict[tuple[int, int], CorpusOrder] = {}
    for phase in resolved.phases:
        if consumed_samples is not None and phase.plan.first.samples >= consumed_samples:
            break
        ends = [end for end in (_end_of(phase), consumed_samples) if end is not None]
        corpora = phase.files.corpora
        counts: list[int] | list[None] = [None] * len(corpora)
        if ends and corpora:
            samples = min(ends) - phase.reading.first_sample
            counts = count_by_share([one.share for one in corpora], samples)
        for facts, start, count in zip(corpora, phase.reading.corpora, counts, strict=False):
            if facts.samples:
                found[start.phase, start.corpus] = CorpusOrder(
                    facts=facts,
                    sequence_length=1 if is_rl(phase.config) else phase.plan.sequence_length,
                    samples=None if count is None else start.samples + count,
                    first_phase=resolved.plan.phases[start.phase].name,
                )
    yield from found.values()


def _end_of(phase: ResolvedPhase) -> int | None:
    """Returns the samples at the end of a phase, or None if it has none."""
    return None if phase.plan.end is None else phase.plan.end.samples


def describe_passes(resolved: Resolved) -> Iterator[str]:
    """Yields a line for each corpus: its samples, and how often each is read.

    A corpus that is read in several orders is counted in tokens, or in prompts.
    """
    unit = unit_of(resolved.config).removesuffix("s")
    for one in corpus_passes(resolved):
        name, pairs, read = one.facts.name, one.facts.pairs, "without end"
        size = counted(one.facts.samples, unit)
        size += "" if pairs is None else f" of {counted(pairs, 'pair')}"
        if one.passes is not None:
            read = f"{one.passes:.2f} times{_until_each_phase(resolved, name)}"
        if len(one.orders) > 1:
            size, again = counted_shortly(one.tokens, resolved), one.read_again_tokens
            read += f"; about {counted_shortly(again, resolved)} are read again" if again else ""
        yield f"reads: {name}: {size}, each {read}"


def _until_each_phase(resolved: Resolved, name: str) -> str:
    """Returns the passes over a corpus at the end of each phase that reads it."""
    found = [
        f"{passes:.2f} after {phase.name}"
        for phase in resolved.phases
        if (passes := passes_of_phase(resolved, phase).get(name)) is not None
    ]
    return f" ({listed(found, most=MOST_NAMED)})" if len(found) > 1 else ""


def counted_shortly(tokens: int, resolved: Resolved) -> str:
    """Returns a number of tokens of a run in short, or of prompts in reinforcement learning."""
    unit = "prompt" if is_rl(resolved.config) else "token"
    return f"{shorten(tokens)} {unit}{'' if tokens == 1 else 's'}"


def pass_notes(resolved: Resolved) -> list[str]:
    """Returns notes on corpora that are read many times, or in several orders."""
    unit, found = unit_of(resolved.config).removesuffix("s"), corpus_passes(resolved)
    several = [*_notes_on_orders(found, resolved)]
    over = [one for one in found if one.passes is not None and one.passes > MOST_PASSES]
    if not over or resolved.plan.end_sample is None:
        return several
    notes = []
    for one in over[:MOST_NOTES]:
        each = "the" if one.facts.samples == 1 else "each of the"
        size = f"{each} {counted(one.facts.samples, unit)} of {one.facts.name} is"
        if len(one.orders) > 1:
            size = f"the {'prompts' if unit == 'prompt' else 'tokens'} of {one.facts.name} are"
        notes.append(f"{size} read {one.passes:.1f} times")
    more = len(over) - MOST_NOTES
    notes[-1] += f", and {more} more corpora are read often" if more > 0 else ""
    if len(resolved.phases) == 1 and (length := _samples_of_few_passes(resolved, over)):
        notes[-1] += f"; trainer.max_samples={length} reads none more than {MOST_PASSES} times"
    return [*several, *notes]


def _samples_of_few_passes(resolved: Resolved, over: list[CorpusPasses]) -> int:
    """Returns the samples of a shorter run that reads no corpus more than `MOST_PASSES` times."""
    most = max(one.passes or 0.0 for one in over)
    batch = max(stage.global_batch_size for stage in resolved.plan.stages)
    length = int((resolved.plan.end_sample or 0) * MOST_PASSES / most)
    return length - length % batch  # a run ends with a whole step


def _notes_on_orders(corpora: list[CorpusPasses], resolved: Resolved) -> Iterator[str]:
    """Yields notes on corpora with tokens that are read again before others are read once."""
    for one in corpora:
        later = [order.first_phase for order in one.orders[1:] if order.first_phase is not None]
        unread = one.tokens - one.distinct_tokens
        if later and one.read_again_tokens and unread > 0:
            yield (
                f"{phases_named(later)} {'cuts' if len(later) == 1 else 'cut'} {one.facts.name}"
                " into other samples and"
                f" {'begins' if len(later) == 1 else 'begin'} another order of them: about"
                f" {counted_shortly(unread, resolved)} are never read"
            )
