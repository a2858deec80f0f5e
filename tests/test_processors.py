import pytest

from rampcli import processors
from rampcli.processors import processor_name


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
