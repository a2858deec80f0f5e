import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rampcli.data.building import streams
from rampcli.data.building.parquet_pages import largest_page_bytes
from rampcli.data.building.streams import read_parquet
from rampcli.errors import UsageError

TEXTS = [f"text {number} " * 9 for number in range(3000)]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("has_dictionary", [True, False])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_largest_page_is_found_in_every_form_of_parquet(
    tmp_path, version, has_dictionary, codec
):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": [*TEXTS, "long" * 50_000]}),
        path,
        data_page_size=10_000,
        data_page_version=version,
        use_dictionary=has_dictionary,
        compression=codec,
    )
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    longest = max(largest_page_bytes(path, "text"))
    assert 200_000 < longest <= chunk.total_uncompressed_size


def test_a_page_that_is_too_long_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "MOST_PAGE_BYTES", 1 << 20)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a" * (1 << 22)]}), path, compression="zstd")
    before = pa.total_allocated_bytes()
    with pytest.raises(UsageError, match=f"the column text of {path} has a page longer than 1 MiB"):
        next(read_parquet(path, "text", 0, 1 << 20))
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_rows_that_repeat_one_long_text_are_read_a_few_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "MOST_BATCH_BYTES", 4 << 20)
    path, text = tmp_path / "a.parquet", "a" * (1 << 20)
    column = pa.DictionaryArray.from_arrays(pa.array([1] * 10_000), pa.array(["b", text]))
    pq.write_table(pa.table({"text": column}), path, compression="zstd")
    before = pa.total_allocated_bytes()
    parts = read_parquet(path, "text", 0, 1 << 20)
    assert [next(parts)[0] for _ in range(9)] == [[text.encode()]] * 9
    assert pa.total_allocated_bytes() - before < 16 << 20


def _small_file() -> bytes:
    packed = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), packed)
    return packed.getvalue()


SMALL = _small_file()


@settings(max_examples=200)
@example(4, b"\x19\xf9" * 40)  # lists in lists
@example(4, b"\x1c" * 80)  # structs in structs
@example(4, b"\x18" + b"\xff" * 8 + b"\x7f")  # a text of 2**63 bytes
@example(4, b"\x19\xf1" + b"\xff" * 8 + b"\x7f")  # 2**63 booleans
@example(4, b"\x15\x00\x15\x01\x15\x01\x00")  # a page that ends before it starts
@given(st.integers(4, len(SMALL) - 1), st.binary(min_size=1, max_size=20))
def test_damaged_headers_are_refused_or_read(tmp_path_factory, place, damage):
    path = tmp_path_factory.getbasetemp() / "damaged.parquet"
    path.write_bytes((SMALL[:place] + damage + SMALL[place + len(damage) :])[: len(SMALL)])
    rows, refused = 0, []
    try:
        rows = sum(len(part) for part, _ in read_parquet(path, "text", 0, 100))
    except UsageError as error:
        refused = [error.message]
    assert rows <= 3
    assert all("damaged.parquet" in message for message in refused)
