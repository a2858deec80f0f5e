from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage

import pytest

from rampcli.machine import host_memory
from rampcli.machine.host_memory import (
    available_bytes,
    count_oom_kills,
    peak_resident_bytes,
    swapped_bytes,
)

FILES = {
    "HOST": "MemTotal:       16384 kB\nMemAvailable:    4096 kB\nHugePages_Total:       0\n",
    "COUNTERS": "nr_free_pages 7\noom_kill_disable 5\noom_kill 3\n",
    "PROCESS": "Name:\tVmHWM 9\n\nVmHWM:\t    2048 kB\nVmSwap:\t      12 kB\n",
}
FIGURES: dict[Callable[[], int | None], tuple[int, int | None]] = {
    available_bytes: (2**22, None),
    peak_resident_bytes: (2**21, None),
    swapped_bytes: (12 * 2**10, 0),
    count_oom_kills: (3, 0),
}
"""Each figure in `FILES`, and the one of a system without these files or lines."""


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    """Replaces the files of the kernel by some of one's own; returns their folder."""
    for name in (*FILES, "GROUPS_OF_PROCESS", "GROUPS"):
        monkeypatch.setattr(host_memory, name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_the_kernels_or_unknown_where_the_kernel_does_not_say(figure, kernel):
    said, otherwise = FIGURES[figure]
    assert figure() == otherwise
    for name, text in FILES.items():
        (kernel / name).write_text(text)
    assert figure() == said
    for name in FILES:
        (kernel / name).write_text("another_name 1\n")
    assert figure() == otherwise


@pytest.mark.parametrize(
    ("groups", "counter"),
    [
        ("4:memory:/job/7\n1:cpu:/\n0::/\n", "memory/job/7/memory.oom_control"),
        ("0::/user.slice/run:1.scope\n", "user.slice/run:1.scope/memory.events"),
        ("0::/\n", "memory.events"),
    ],
)
def test_only_kills_in_the_control_group_of_this_process_count(kernel, groups, counter):
    (kernel / "COUNTERS").write_text(FILES["COUNTERS"])
    (kernel / "GROUPS_OF_PROCESS").write_text(groups)
    assert count_oom_kills() == 3  # the host's: the group has no file
    (kernel / "GROUPS" / counter).parent.mkdir(parents=True)
    (kernel / "GROUPS" / counter).write_text("low 0\noom 4\noom_kill 1\noom_group_kill 0\n")
    assert count_oom_kills() == 1


def test_the_peak_is_that_of_this_process():
    otherwise_bytes = 1024 * getrusage(RUSAGE_SELF).ru_maxrss
    assert peak_resident_bytes() == pytest.approx(otherwise_bytes, rel=0.1)
