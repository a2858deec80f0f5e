import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.dealing_hosts import read_cases
from rampcli.data.hosts import Reading, readers_of
from rampcli.errors import UsageError
from ranks import run_ranks


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


def test_a_process_that_reads_for_no_rank_opens_no_corpus():
    assert not Reading(rank=1, ranks=()).reads
    assert Reading(rank=1, ranks=(1,)).reads


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
