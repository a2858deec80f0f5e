"""How often a run reads each of its corpora."""

from collections.abc import Iterator
from dataclasses import dataclass

from rampcli.batch.quantities import counted
from rampcli.config.file_facts import CorpusFacts
from rampcli.config.rl import unit_of
from rampcli.planning.run_plan import Resolved

MOST_PASSES = 5
"""Passes over a corpus above which a note is due. Up to four cost little (arXiv 2305.16264)."""
MOST_NOTES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusPasses:
    """A corpus of a run.

    Attributes:
        facts: its name, samples and share.
        passes: how often the run reads each sample, or None if it has no end.
    """

    facts: CorpusFacts
    passes: float | None


def corpus_passes(resolved: Resolved) -> list[CorpusPasses]:
    """Returns the training corpora of a run, as far as their files were read."""
    corpora, end_sample = resolved.files.corpora, resolved.plan.end_sample
    shares = sum(one.share for one in corpora)
    return [
        CorpusPasses(
            facts=one,
            passes=None if end_sample is None else end_sample * one.share / shares / one.samples,
        )
        for one in corpora
        if one.samples
    ]


def describe_passes(resolved: Resolved) -> Iterator[str]:
    """Yields a line for each corpus: its samples, and how often each is read."""
    unit = unit_of(resolved.config)
    for one in corpus_passes(resolved):
        samples = counted(one.facts.samples, unit.removesuffix("s"))
        pairs = "" if one.facts.pairs is None else f" of {counted(one.facts.pairs, 'pair')}"
        read = "without end" if one.passes is None else f"{one.passes:.2f} times"
        yield f"reads: {one.facts.name}: {samples}{pairs}, each {read}"


def pass_notes(resolved: Resolved) -> list[str]:
    """Returns notes on corpora that are read many times."""
    unit, found = unit_of(resolved.config), corpus_passes(resolved)
    over = [one for one in found if one.passes is not None and one.passes > MOST_PASSES]
    if not over or resolved.plan.end_sample is None:
        return []
    most = max(one.passes or 0.0 for one in over)
    batch = max(stage.global_batch_size for stage in resolved.plan.stages)
    length = int(resolved.plan.end_sample * MOST_PASSES / most)
    length -= length % batch  # a run ends with a whole step
    notes = [
        f"{'the' if one.facts.samples == 1 else 'each of the'}"
        f" {counted(one.facts.samples, unit.removesuffix('s'))} of {one.facts.name} is read"
        f" {one.passes:.1f} times"
        for one in over[:MOST_NOTES]
    ]
    more = len(over) - MOST_NOTES
    notes[-1] += f", and {more} more corpora are read often" if more > 0 else ""
    if length:
        notes[-1] += f"; trainer.max_samples={length} reads none more than {MOST_PASSES} times"
    return notes
