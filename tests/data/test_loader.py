import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.dealing_hosts import read_cases
from rampcli.batch.plan import BatchPlan
from rampcli.data.corpus import IGNORED, Cut, MockCorpus, Samples
from rampcli.data.examples import TRAINING_SIDE, UNSPLIT, TaskExamples
from rampcli.data.loader import STEPS_AHEAD, Loader, Reading, readers_of
from rampcli.data.order import Blend
from rampcli.data.pair_format import PairFormat
from rampcli.data.pairs import PackedPairs, TaskPairs
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.errors import UsageError
from ranks import run_ranks
from small_corpora import ListedExamples, token_corpus

LENGTH = 5
CPU = torch.device("cpu")
PATIENCE_S = 60


def cut(**switches):
    return Cut(sequence_length=LENGTH, vocab_size=256, **switches)


def text(**switches):
    documents = [np.full(3 + number, 65 + number, dtype=np.uint8) for number in range(24)]
    return token_corpus(documents, cut=cut(**switches))


MOCK = MockCorpus(cut=cut(), seed=3, windows=37)
BLENDS = {
    "mock": Blend([MOCK], [1], seed=11),
    "text": Blend([text(eod_mask_loss=True)], [1], seed=11),
    "padded": Blend([text(pad_last_window=True)], [1], seed=11),
    "masked": Blend([text(document_mask=True)], [1], seed=11),
    "two": Blend([MOCK, text()], [3, 1], seed=11),
    "two masked": Blend(
        [text(document_mask=True), MockCorpus(cut=cut(document_mask=True), seed=4)], [3, 1], seed=11
    ),
}
BYTES = PairFormat(byte_tokenizer().to_str(), end=None, template=None)
EXAMPLES = ListedExamples(tuple((f"{number % 100}", "x" * (number % 3)) for number in range(40)))
NUMBERS = TaskExamples(task="sort", digits=1, seed=3, split=UNSPLIT, side=TRAINING_SIDE)
BLENDS |= {
    "pairs masked": Blend([PackedPairs(EXAMPLES, BYTES, length=LENGTH)], [1], seed=11),
    "task masked": Blend([TaskPairs.of(NUMBERS, BYTES, length=LENGTH)], [1], seed=11),
}
NAMES = st.sampled_from(sorted(BLENDS))
SMALL = st.integers(1, 4)
FIRST = st.integers(0, 300)


def loaders(blend, plan):
    return [
        Loader(blend, reading=Reading(rank=rank, ranks=(rank,)), device=CPU)
        for rank in range(plan.data_parallel_size)
    ]


def plan_of(micro, ranks, accumulate):
    return BatchPlan.divide(
        micro * ranks * accumulate, micro_batch_size=micro, data_parallel_size=ranks
    )


def together(micro_batches):
    """Concatenates the tokens, labels and, if present, positions of micro batches."""
    planes = [(part.tokens, part.labels, part.positions) for part in micro_batches]
    return [torch.cat(plane).numpy() for plane in zip(*planes, strict=True) if plane[0] is not None]


def assert_holds(micro_batches, samples):
    """Asserts that micro batches hold the samples that a blend has read."""
    wanted = [
        plane for plane in (samples.tokens, samples.labels, samples.positions) if plane is not None
    ]
    held = together(micro_batches)
    assert len(held) == len(wanted)
    for one, other in zip(held, wanted, strict=True):
        assert np.array_equal(one, other)


@settings(max_examples=20)
@given(name=NAMES, micro=SMALL, ranks=SMALL, accumulate=SMALL, first=FIRST)
def test_every_sample_equals_that_of_the_blend(name, micro, ranks, accumulate, first):
    plan = plan_of(micro, ranks, accumulate)
    for loader in loaders(BLENDS[name], plan):
        batch = loader.read(first, plan)
        wanted = BLENDS[name].read(batch.samples)
        assert len(batch.micro_batches) == accumulate
        assert all(
            part.tokens.shape == part.labels.shape == (micro, LENGTH)
            for part in batch.micro_batches
        )
        assert_holds(batch.micro_batches, wanted)
        assert (
            batch.valid_tokens
            == wanted.valid_tokens
            == sum(int((part.labels != IGNORED).sum()) for part in batch.micro_batches)
        )


@settings(max_examples=15)
@given(name=NAMES, micro=SMALL, ranks=SMALL, accumulate=SMALL, first=FIRST)
def test_a_global_batch_is_the_same_for_any_number_of_ranks_and_micro_batches(
    name, micro, ranks, accumulate, first
):
    def rows(plan):
        parts = [loader.read(first, plan) for loader in loaders(BLENDS[name], plan)]
        order = np.argsort(np.concatenate([part.samples for part in parts]))
        return [
            plane[order]
            for plane in together(
                [micro_batch for part in parts for micro_batch in part.micro_batches]
            )
        ]

    plan = plan_of(micro, ranks, accumulate)
    for one, other in zip(rows(plan), rows(plan_of(plan.global_batch_size, 1, 1)), strict=True):
        assert np.array_equal(one, other)


@settings(max_examples=20)
@given(micro=SMALL, ranks=SMALL, accumulate=SMALL, first=FIRST)
def test_a_micro_batch_holds_consecutive_samples_rank_after_rank(micro, ranks, accumulate, first):
    plan = plan_of(micro, ranks, accumulate)
    by_rank = [
        loader.read(first, plan).samples.reshape(accumulate, micro)
        for loader in loaders(BLENDS["mock"], plan)
    ]
    assert np.stack(by_rank, axis=1).ravel().tolist() == list(
        range(first, first + plan.global_batch_size)
    )


@settings(max_examples=15)
@given(
    name=NAMES,
    stages=st.lists(
        st.tuples(SMALL, SMALL, st.integers(1, 4), st.none() | FIRST), min_size=1, max_size=4
    ),
    rank=st.integers(0, 3),
)
@example(name="two", stages=[(1, 2, 4, None), (2, 2, 3, None), (4, 2, 2, None)], rank=1)
@example(name="masked", stages=[(2, 2, 4, None), (2, 2, 4, 2), (1, 1, 1, 0)], rank=0)
@example(name="text", stages=[(4, 4, 1, 300), (4, 4, 2, 284), (4, 4, 1, 300)], rank=3)
def test_a_step_reads_the_same_samples_in_a_ramp_after_a_jump_back_and_alone(name, stages, rank):
    """Batches prefetched for another plan or another position are discarded."""
    loader, first = Loader(BLENDS[name], reading=Reading(rank=rank, ranks=(rank,)), device=CPU), 0
    for micro, accumulate, steps, jump in stages:
        plan = plan_of(micro, 4, accumulate)
        first = first if jump is None else jump
        for _ in range(steps):
            batch = loader.read(first, plan)
            expected = (
                np.arange(first, first + plan.global_batch_size)
                .reshape(accumulate, 4, micro)[:, rank]
                .ravel()
            )
            assert np.array_equal(batch.samples, expected)
            assert_holds(batch.micro_batches, BLENDS[name].read(expected))
            first += plan.global_batch_size


@pytest.mark.parametrize("name", sorted(BLENDS))
def test_tensors_are_int64_and_positions_exist_only_with_a_document_mask(name):
    plan = plan_of(2, 1, 2)
    [loader] = loaders(BLENDS[name], plan)
    for part in [*loader.read(0, plan).micro_batches, *loader.read_first(3, plan)]:
        assert part.tokens.dtype == part.labels.dtype == torch.int64
        assert (part.positions is not None) == name.endswith("masked")
        assert part.positions is None or (part.positions.dtype, part.positions.shape) == (
            torch.int64,
            part.tokens.shape,
        )


@settings(max_examples=20)
@given(name=NAMES, micro=SMALL, ranks=SMALL, samples=st.integers(0, 20))
@example(name="mock", micro=4, ranks=3, samples=1)
@example(name="masked", micro=3, ranks=2, samples=12)
def test_validation_reads_each_of_the_first_samples_once_over_all_ranks(
    name, micro, ranks, samples
):
    plan = plan_of(micro, ranks, 1)
    shares = [list(loader.read_first(samples, plan)) for loader in loaders(BLENDS[name], plan)]
    assert {len(share) for share in shares} == {-(-samples // (micro * ranks))}
    in_order = [share[turn] for turn in range(len(shares[0])) for share in shares]
    if samples:
        wanted = BLENDS[name].read(np.arange(samples))
        tokens, labels, *positions = together(in_order)
        assert np.array_equal(tokens[:samples], wanted.tokens)
        assert np.array_equal(labels[:samples], wanted.labels)
        assert (labels[samples:] == IGNORED).all()
        assert [plane[:samples].tolist() for plane in positions] == (
            [] if wanted.positions is None else [wanted.positions.tolist()]
        )


@pytest.mark.parametrize("name", sorted(BLENDS))
def test_tokens_that_pad_the_last_micro_batches_of_a_validation_can_be_embedded(name):
    plan = plan_of(4, 3, 1)
    for loader in loaders(BLENDS[name], plan):
        for part in loader.read_first(5, plan):
            assert part.tokens.min() >= 0
            assert part.tokens.max() < 256


@dataclass(kw_only=True)
class Torn:
    """A corpus that cannot be read from window `torn_at` on, and signals a read of `watched`."""

    whole: MockCorpus
    torn_at: int
    watched: int
    windows: int = 1000
    name: str = "torn"
    fingerprint: str = "torn"
    reached: threading.Event = field(default_factory=threading.Event)

    def read(self, windows) -> Samples:
        if windows.max() >= self.watched:
            self.reached.set()
        if windows.max() >= self.torn_at:
            raise UsageError("torn")
        return self.whole.read(windows)


def torn_loader(torn_at, watched=0):
    torn = Torn(whole=MOCK, torn_at=torn_at, watched=watched)
    return Loader(
        Blend([torn], [1], seed=None), reading=Reading(rank=0, ranks=(0,)), device=CPU
    ), torn.reached


def in_time(function, *args):
    """Calls a function; fails if it does not return in time."""
    return ThreadPoolExecutor(max_workers=1).submit(function, *args).result(timeout=PATIENCE_S)


def test_the_following_steps_are_read_ahead():
    plan = plan_of(2, 1, 2)
    loader, reached = torn_loader(torn_at=1000, watched=STEPS_AHEAD * plan.global_batch_size)
    in_time(loader.read, 0, plan)
    assert reached.wait(PATIENCE_S)


def test_at_most_two_steps_are_read_ahead(monkeypatch):
    pool = ThreadPoolExecutor(max_workers=1)
    monkeypatch.setattr("rampcli.data.loader.ThreadPoolExecutor", lambda **_: pool)
    plan = plan_of(2, 1, 2)
    loader, reached = torn_loader(torn_at=1000, watched=(1 + STEPS_AHEAD) * plan.global_batch_size)
    in_time(loader.read, 0, plan)
    pool.shutdown()
    assert not reached.is_set()


def test_a_read_error_is_raised_only_by_the_step_that_needs_the_sample():
    plan = plan_of(2, 1, 2)
    loader, reached = torn_loader(torn_at=8, watched=8)
    for first in (0, 4):
        assert in_time(loader.read, first, plan).samples.tolist() == list(range(first, first + 4))
    assert reached.wait(PATIENCE_S)
    for first in (8, 8, 12):
        with pytest.raises(UsageError, match="torn"):
            in_time(loader.read, first, plan)


def test_an_error_in_an_unused_step_that_was_read_ahead_is_ignored():
    loader, reached = torn_loader(torn_at=8, watched=8)
    in_time(loader.read, 0, plan_of(4, 1, 1))
    assert reached.wait(PATIENCE_S)
    for first in (4, 6):
        assert in_time(loader.read, first, plan_of(2, 1, 1)).samples.tolist() == [first, first + 1]


def test_after_a_read_error_intact_samples_are_still_read():
    plan = plan_of(2, 1, 2)
    loader, _ = torn_loader(torn_at=8)
    with pytest.raises(UsageError, match="torn"):
        in_time(loader.read, 8, plan)
    assert_holds(in_time(loader.read, 4, plan).micro_batches, MOCK.read(np.arange(4, 8)))


@given(
    hosts=st.integers(1, 12),
    devices=st.integers(1, 4),
    factor=st.sampled_from([1, 1.5, 2, 2.5, 3, 4, 0.5, -1, None]),
)
def test_the_reader_of_a_process_has_the_same_local_rank_on_a_reading_host(hosts, devices, factor):
    try:
        readers = readers_of(hosts * devices, devices=devices, expansion_factor=factor)
    except UsageError:
        assert (hosts / factor) % 1 > 0
        return
    assert len(set(readers)) == (
        hosts * devices / factor if factor is not None and factor > 1 else hosts * devices
    )
    for rank, reader in enumerate(readers):
        assert reader <= rank
        assert reader % devices == rank % devices
        assert readers[reader] == reader
    assert sorted(set(readers)) == sorted({readers[rank] for rank in range(hosts * devices)})


def test_processes_of_a_single_host_read_for_themselves():
    assert readers_of(3, devices=8, expansion_factor=None) == [0, 1, 2]


def test_two_of_three_hosts_read_with_an_expansion_of_one_and_a_half():
    assert readers_of(6, devices=2, expansion_factor=1.5) == [0, 1, 0, 1, 4, 5]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Returns the report of each of four ranks."""
    texts, logs = (tmp_path_factory.mktemp(name) for name in ("texts", "logs"))
    for number in range(40):
        (texts / f"{number:02}.txt").write_text(chr(65 + number) * (1 + number % 11))
    return run_ranks(4, read_cases, texts, logs=logs)


def test_every_rank_receives_the_samples_it_would_have_read_itself(ranks):
    """Covers the tokens, labels and positions of ramp steps, jumps and validations."""
    for rank in ranks:
        for case in rank["cases"]:
            assert case["is_equal"], case


def test_one_of_each_group_of_hosts_reads_for_the_others(ranks):
    def whom(factor, devices, data_ranks):
        return [
            case["reads_for"]
            for rank in ranks
            for case in rank["cases"]
            if (case["factor"], case["devices"], case["data_ranks"], case["masked"])
            == (factor, devices, data_ranks, True)
        ]

    assert whom(4, 1, [0, 1, 2, 3]) == [[0, 1, 2, 3], [], [], []]
    assert whom(2, 1, [0, 1, 2, 3]) == [[0, 1], [], [2, 3], []]
    assert whom(2, 2, [0, 1, 2, 3]) == [[0, 2], [1, 3], [], []]
    assert whom(2, 1, [0, 0, 1, 1]) == [[0, 0], [], [1, 1], []]
    assert whom(None, 1, [0, 1, 2, 3]) == [[0], [1], [2], [3]]


def test_ranks_without_a_corpus_receive_their_own_samples_and_positions(ranks):
    for number, case in enumerate(ranks[0]["cases"]):
        samples = [rank["cases"][number]["samples"] for rank in ranks]
        different = len(set(case["data_ranks"]))
        assert (
            len({str(read) for read, _ in samples})
            == len({str(tokens) for _, tokens in samples})
            == different
        )
        assert [rank["cases"][number]["is_masked"] for rank in ranks] == [case["masked"]] * 4
        assert all(rank["cases"][number]["types"] == ["torch.int64"] for rank in ranks)


def test_all_ranks_know_the_corpora_of_the_readers_and_refuse_different_ones(ranks):
    differ = "the hosts do not read the same corpora"
    for rank in ranks:
        assert all(case["agreed"] for case in rank["cases"])
        same = ("5a" * 32, "5c" * 32)
        assert rank["fingerprints"] == [same, same, differ, differ]
