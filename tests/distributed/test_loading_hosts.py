"""Hosts that read for others and hosts that cannot: four emulated hosts with a folder each."""

import shutil
from pathlib import Path

import pytest

from once import make_once
from tiny_runs import Run, assert_every_sample_is_read_once, assert_same_training

WORDS = [
    "data=indexed",
    "data.path=short",
    "data.split=[9,1,0]",
    "data.document_mask=true",
    "model.rampup_batch_size=[4,4,14]",  # four steps of 4 samples, then two of 8
    "trainer.max_samples=32",
    "trainer.val_samples=4",
    "trainer.val_every_steps=3",
    "data.micro_batch_size=1",
    "rampup.at_boundary=continue",
    "rampup.node_policy=fixed",
]


@pytest.fixture(scope="session")
def hosts(tmp_path_factory, short_documents):
    """Makes the folders of four hosts, and copies the corpus to some of them."""

    def hosts_with(*having: int):
        folders = [tmp_path_factory.mktemp("host") for _ in range(4)]
        for host in having:
            for suffix in (".bin", ".idx"):
                shutil.copy(short_documents.with_suffix(suffix), folders[host])
        return folders

    return hosts_with


@pytest.fixture(scope="session")
def alone(tmp_path_factory, hosts):
    """Returns a run on one host, which has the corpus."""

    def train(path: Path) -> None:
        Run(path).workers(1, *WORDS, folders=hosts(0))

    return Run(make_once(tmp_path_factory, "host", train))


@pytest.mark.parametrize(("factor", "having"), [("4", [0]), ("2", [0, 2]), ("0.5", [0, 1, 2, 3])])
def test_only_the_loading_hosts_need_the_files_and_the_training_is_the_same(
    factor, having, run, hosts, alone
):
    run.workers(4, *WORDS, f"data.expansion_factor_real_data={factor}", folders=hosts(*having))
    assert {row["world_size"] for row in run.rows} == {4}
    assert_same_training(run, alone)


def test_a_host_that_should_read_and_has_no_files_ends_the_run_with_one_error(run, hosts):
    with pytest.raises(AssertionError):
        run.workers(4, *WORDS, "data.expansion_factor_real_data=2", folders=hosts(0))
    assert (
        run.directory.read_state()["error"]["message"]
        == "cannot read short.idx: No such file or directory"
    )


def test_hosts_with_different_files_do_not_train(run, hosts):
    folders = hosts(0, 2)
    tokens = (folders[2] / "short.bin").read_bytes()
    (folders[2] / "short.bin").write_bytes(tokens[:100] + bytes([tokens[100] ^ 1]) + tokens[101:])
    with pytest.raises(AssertionError):
        run.workers(4, *WORDS, "data.expansion_factor_real_data=2", folders=folders)
    assert (
        run.directory.read_state()["error"]["message"] == "the hosts do not read the same corpora"
    )


def test_a_run_resumes_with_other_loading_hosts(run, hosts):
    settled = "schedule.decay_style=constant"
    whole = run.beside("whole")
    whole.workers(1, *WORDS, settled, folders=hosts(0))
    for end, factor, having in ((8, "4", [0]), (24, "null", [0, 1, 2, 3]), (32, "2", [0, 2])):
        run.workers(
            4,
            *WORDS,
            settled,
            f"trainer.max_samples={end}",
            f"data.expansion_factor_real_data={factor}",
            folders=hosts(*having),
        )
    assert_every_sample_is_read_once(run)
    assert [row["order_hash"] for row in run.rows] == [row["order_hash"] for row in whole.rows]
    assert [row["loss"] for row in run.rows] == pytest.approx(
        [row["loss"] for row in whole.rows], abs=1e-5
    )
