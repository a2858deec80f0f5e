import hashlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.files.checksums import checksum_fits, page_sums, sha256


@pytest.mark.parametrize(
    "sum_of",
    [page_sums, lambda content: hashlib.sha256(content).hexdigest()],
    ids=["sums", "sha256"],
)
def test_a_file_is_compared_with_the_checksum_in_its_manifest(sum_of, tmp_path):
    content = bytes(range(256)) * 40_000  # more than one piece
    facts = {"sha256" if sum_of is not page_sums else "sums": sum_of(content)}
    (tmp_path / "file").write_bytes(content)
    assert checksum_fits(tmp_path / "file", facts)
    (tmp_path / "file").write_bytes(content[:-1] + b"x")
    assert not checksum_fits(tmp_path / "file", facts)


@given(
    content=st.binary(min_size=1, max_size=300).map(lambda seed: seed * 60),
    place=st.integers(0, 10**6),
    new=st.binary(min_size=1, max_size=4096),
)
def test_any_damage_within_a_page_changes_the_sums(content, place, new):
    first = place % len(content)
    last = min(first + len(new), len(content), (first // 4096 + 1) * 4096)
    damaged = content[:first] + new[: last - first] + content[last:]
    assert (page_sums(damaged) == page_sums(content)) == (damaged == content)


def test_swapped_pages_change_the_sums():
    pages = [bytes([number]) * 4096 for number in range(4)]
    assert len({page_sums(b"".join(order)) for order in itertools.permutations(pages)}) == 24


def test_sha256_is_the_hash_of_the_content(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert (
        sha256(tmp_path / "file")
        == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
