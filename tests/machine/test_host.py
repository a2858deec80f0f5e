from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage

import pytest

from rampcli.machine import host
from rampcli.machine.host import (
    available_bytes,
    count_oom_kills,
    has_bf16_products,
    peak_resident_bytes,
    processor_name,
    processors_near,
    swapped_bytes,
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 9V74\n\nprocessor\t: 1\n", "AMD EPYC 9V74"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", None),
        ("", None),
    ],
)
def test_the_name_of_the_processor_is_the_kernels(monkeypatch, tmp_path, text, name):
    monkeypatch.setattr(host, "CPUINFO", tmp_path / "cpuinfo")
    assert processor_name() is None
    (tmp_path / "cpuinfo").write_text(text)
    assert processor_name() == name


@pytest.mark.parametrize(
    ("flags", "has"), [("fpu avx512_bf16", True), ("amx_bf16 fpu", True), ("fpu avx512f", False)]
)
def test_products_in_bf16_are_those_that_the_kernel_lists(monkeypatch, tmp_path, flags, has):
    monkeypatch.setattr(host, "CPUINFO", tmp_path / "cpuinfo")
    assert not has_bf16_products()
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert has_bf16_products() == has


@pytest.mark.parametrize(
    ("node", "text", "near"),
    [
        ("1", "0-2,8,10-11\n", {0, 1, 2, 8, 10, 11}),
        ("1", "\n", set()),  # a node of memory without processors
        ("-1", "0-2\n", set()),  # the kernel does not know the node
    ],
)
def test_processors_near_a_device_are_those_of_its_node(monkeypatch, tmp_path, node, text, near):
    monkeypatch.setattr(host, "SYSTEM", tmp_path)
    assert processors_near("0000:1b:00.0") == set()
    for file, line in {
        "bus/pci/devices/0000:1b:00.0/numa_node": f"{node}\n",
        "devices/system/node/node1/cpulist": text,
    }.items():
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(line)
    assert processors_near("0000:1b:00.0") == near


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
    for name in (*FILES, "GROUPS_OF_PROCESS", "CGROUPS"):
        monkeypatch.setattr(host, name, tmp_path / name)
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
    (kernel / "CGROUPS" / counter).parent.mkdir(parents=True)
    (kernel / "CGROUPS" / counter).write_text("low 0\noom 4\noom_kill 1\noom_group_kill 0\n")
    assert count_oom_kills() == 1


def test_the_peak_is_that_of_this_process():
    otherwise_bytes = 1024 * getrusage(RUSAGE_SELF).ru_maxrss
    assert peak_resident_bytes() == pytest.approx(otherwise_bytes, rel=0.1)
