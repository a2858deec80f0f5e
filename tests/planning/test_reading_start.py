"""Laws of the order of samples over the phases of a run."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from drawn_phases import planned
from rampcli.batch.interleaving import count_by_share
from rampcli.config.file_facts import FileFacts
from rampcli.data.order import Blend, SampleOrder
from rampcli.settings.data import corpora_of

WINDOWS = 40
"""Windows of a corpus of samples of 32 tokens. There are half as many of 64."""


@dataclass(frozen=True)
class Windows:
    """A corpus whose windows are only counted."""

    windows: int


@st.composite
def readings(draw):
    """Draws the words of a run whose phases read corpora in any proportions and lengths."""
    words, end = ["data.source=text", "trainer.max_steps=null"], 0
    words += ["model.global_batch_size=1", "model.rampup_batch_size=null"]
    blends = draw(st.lists(blends_drawn(), min_size=1, max_size=2))
    for number in range(draw(st.integers(1, 5))):
        end += draw(st.integers(1, 60))
        inside = [f"until=samples:{end}", f"data.blend=[{draw(st.sampled_from(blends))}]"]
        inside.append(f"data.sequence_length={draw(st.sampled_from((32, 64)))}")
        words += [f"phases.p{number}.{word}" for word in inside]
    return words


@st.composite
def blends_drawn(draw):
    names = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    return ",".join(f"{draw(st.sampled_from((1, 2, 5)))},{name}" for name in names)


def read_in(resolved):
    """Yields the settings of each sample's phase, its corpus and its window, in order."""
    for phase in resolved.phases:
        length = phase.config.data.sequence_length
        found = corpora_of(phase.config)
        corpora = [Windows(WINDOWS * 32 // length) for _ in found]
        blend = Blend(corpora, [share for share, _ in found], seed=1).starting_at(phase.reading)
        samples = np.arange(phase.plan.first.samples, phase.plan.end.samples)
        for which, window in zip(*blend.locate(samples), strict=True):
            yield phase.config, str(found[which][1]), int(window)


@given(words=readings())
def test_a_corpus_goes_on_where_a_phase_with_the_same_samples_has_left_it(words):
    resolved = planned(words, read_files=lambda _: FileFacts(tokens=256, val_samples=4))
    read, begun = defaultdict(list), {}
    for phase in resolved.phases:
        for (_, name), start in zip(corpora_of(phase.config), phase.reading.corpora, strict=True):
            begun.setdefault((str(name), phase.config.data.sequence_length), start)
    for config, name, window in read_in(resolved):
        read[name, config.data.sequence_length].append(window)
    for key, windows in read.items():
        order = SampleOrder(
            windows=WINDOWS * 32 // key[1], seed=1, corpus=begun[key].corpus, phase=begun[key].phase
        )
        assert windows == order.windows_of(np.arange(len(windows))).tolist()


@given(words=readings())
def test_corpora_are_read_in_their_proportions_from_where_these_were_set(words):
    resolved = planned(words, read_files=lambda _: FileFacts(tokens=256, val_samples=4))
    before, read = None, 0
    for config, name, _ in read_in(resolved):
        blend = corpora_of(config), config.data.sequence_length
        read = read + 1 if blend == before else 0
        shares = [share for share, _ in blend[0]]
        counts = zip(count_by_share(shares, read), count_by_share(shares, read + 1), strict=True)
        (taken,) = [at for at, (one, other) in enumerate(counts) if other > one]
        assert str(blend[0][taken][1]) == name
        before = blend
