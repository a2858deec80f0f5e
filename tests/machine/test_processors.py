import pytest

from rampcli.machine import processors
from rampcli.machine.processors import has_bf16_products, processor_name, processors_near


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD EPYC 9V74\n\nprocessor\t: 1\n", "AMD EPYC 9V74"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", None),
        ("", None),
    ],
)
def test_the_name_of_the_processor_is_the_kernels(monkeypatch, tmp_path, text, name):
    monkeypatch.setattr(processors, "CPUINFO", tmp_path / "cpuinfo")
    assert processor_name() is None
    (tmp_path / "cpuinfo").write_text(text)
    assert processor_name() == name


@pytest.mark.parametrize(
    ("flags", "has"), [("fpu avx512_bf16", True), ("amx_bf16 fpu", True), ("fpu avx512f", False)]
)
def test_products_in_bf16_are_those_that_the_kernel_lists(monkeypatch, tmp_path, flags, has):
    monkeypatch.setattr(processors, "CPUINFO", tmp_path / "cpuinfo")
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
    monkeypatch.setattr(processors, "SYSTEM", tmp_path)
    assert processors_near("0000:1b:00.0") == set()
    for file, line in {
        "bus/pci/devices/0000:1b:00.0/numa_node": f"{node}\n",
        "devices/system/node/node1/cpulist": text,
    }.items():
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(line)
    assert processors_near("0000:1b:00.0") == near
