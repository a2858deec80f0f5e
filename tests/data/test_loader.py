import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rampcli.batch.plan import BatchPlan
from rampcli.data.corpus import IGNORED, DocumentCorpus, MockCorpus
from rampcli.data.loader import Loader, ValidationLoader
from rampcli.data.order import SampleOrder

MOCK = MockCorpus(vocab_size=50, sequence_length=5, seed=3, windows=37)
TEXT = DocumentCorpus.of([bytes([65 + number] * (3 + number)) for number in range(24)], sequence_length=5)
CORPORA = st.sampled_from([MOCK, TEXT])
SMALL = st.integers(1, 4)


def loaders(corpus, plan, seed=11):
    return [Loader(corpus, seed=seed, rank=rank, device=torch.device("cpu")) for rank in range(plan.data_parallel_size)]


def validation_loaders(corpus, plan):
    return [ValidationLoader(corpus, rank=rank, device=torch.device("cpu")) for rank in range(plan.data_parallel_size)]


def plan_of(micro, ranks, accumulate):
    return BatchPlan.divide(micro * ranks * accumulate, micro_batch_size=micro, data_parallel_size=ranks)


@given(micro=SMALL, ranks=SMALL, accumulate=SMALL, first=st.integers(0, 300))
def test_the_ranks_together_read_each_sample_of_the_global_batch_once(micro, ranks, accumulate, first):
    plan = plan_of(micro, ranks, accumulate)
    read = np.concatenate([loader.read(first, plan).samples for loader in loaders(MOCK, plan)])
    assert np.sort(read).tolist() == list(range(first, first + plan.global_batch_size))


@settings(max_examples=40)
@given(corpus=CORPORA, micro=SMALL, ranks=SMALL, accumulate=SMALL, first=st.integers(0, 300))
def test_every_sample_is_the_window_that_the_order_gives_it(corpus, micro, ranks, accumulate, first):
    plan, order = plan_of(micro, ranks, accumulate), SampleOrder(windows=corpus.windows, seed=11)
    for loader in loaders(corpus, plan):
        batch = loader.read(first, plan)
        tokens, labels = corpus.read(order.windows_of(batch.samples))
        assert len(batch.micro_batches) == accumulate
        assert all(part.tokens.shape == part.labels.shape == (micro, 5) for part in batch.micro_batches)
        assert np.array_equal(torch.cat([part.tokens for part in batch.micro_batches]).numpy(), tokens)
        assert np.array_equal(torch.cat([part.labels for part in batch.micro_batches]).numpy(), labels)


@settings(max_examples=40)
@given(corpus=CORPORA, micro=SMALL, ranks=SMALL, accumulate=SMALL, first=st.integers(0, 300))
def test_a_global_batch_is_the_same_however_it_is_split(corpus, micro, ranks, accumulate, first):
    def rows(plan):
        parts = [loader.read(first, plan) for loader in loaders(corpus, plan)]
        samples = np.concatenate([part.samples for part in parts])
        tokens = torch.cat([micro_batch.tokens for part in parts for micro_batch in part.micro_batches])
        return tokens[torch.from_numpy(np.argsort(samples))]

    plan = plan_of(micro, ranks, accumulate)
    assert torch.equal(rows(plan), rows(plan_of(plan.global_batch_size, 1, 1)))


@settings(max_examples=40)
@given(micro=SMALL, ranks=SMALL, accumulate=SMALL, first=st.integers(0, 300))
def test_a_micro_batch_holds_consecutive_samples_rank_after_rank(micro, ranks, accumulate, first):
    plan = plan_of(micro, ranks, accumulate)
    by_rank = [loader.read(first, plan).samples.reshape(accumulate, micro) for loader in loaders(MOCK, plan)]
    assert np.stack(by_rank, axis=1).ravel().tolist() == list(range(first, first + plan.global_batch_size))


def test_another_seed_reads_other_windows():
    plan = plan_of(4, 2, 2)
    reads = [[loader.read(0, plan).micro_batches[0].tokens for loader in loaders(MOCK, plan, seed)] for seed in (11, 12)]
    assert not torch.equal(torch.cat(reads[0]), torch.cat(reads[1]))


@settings(max_examples=40)
@given(corpus=CORPORA, micro=SMALL, ranks=SMALL, samples=st.integers(0, 20))
@example(corpus=MOCK, micro=4, ranks=3, samples=1)
@example(corpus=TEXT, micro=3, ranks=2, samples=12)
def test_validation_asks_each_of_the_first_windows_once_over_all_ranks(corpus, micro, ranks, samples):
    plan = plan_of(micro, ranks, 1)
    shares = [list(loader.read(samples, plan)) for loader in validation_loaders(corpus, plan)]
    assert {len(share) for share in shares} == {-(-samples // (micro * ranks))}
    in_order = [share[turn] for turn in range(len(shares[0])) for share in shares]
    if samples:
        tokens, labels = corpus.read(np.arange(samples))
        assert np.array_equal(torch.cat([part.tokens for part in in_order])[:samples].numpy(), tokens)
        assert np.array_equal(torch.cat([part.labels for part in in_order])[:samples].numpy(), labels)
        assert (torch.cat([part.labels for part in in_order])[samples:] == IGNORED).all()


@pytest.mark.parametrize("corpus", [MOCK, TEXT], ids=["mock", "documents"])
def test_what_fills_up_the_last_micro_batches_of_a_validation_can_be_embedded(corpus):
    plan = plan_of(4, 3, 1)
    for loader in validation_loaders(corpus, plan):
        for part in loader.read(5, plan):
            assert part.tokens.min() >= 0
            assert part.tokens.max() < 256


def test_valid_tokens_are_the_labels_that_are_not_ignored():
    plan = plan_of(2, 1, 3)
    batch = loaders(TEXT, plan)[0].read(0, plan)
    counted = [sum(label != IGNORED for row in part.labels.tolist() for label in row) for part in batch.micro_batches]
    assert [part.valid_tokens for part in batch.micro_batches] == counted
    assert batch.valid_tokens == sum(counted) < 2 * 3 * 5
