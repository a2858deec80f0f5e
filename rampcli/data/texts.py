"""Reads text files in UTF-8, and says what to do with files in another encoding or format."""

import codecs
import shlex
from pathlib import Path

from rampcli.errors import UsageError, reading
from rampcli.files.guarded_folder import read_content

UTF_8_MARK = codecs.BOM_UTF8
MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Byte order marks that begin a text, and the name of its encoding for iconv."""
WIDE_ENCODINGS = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
"""Encodings of text without a mark, which fill most characters with zero bytes."""
LOOKED_AT_BYTES = 4096
CONTROLS = frozenset(map(chr, range(32))) - set("\t\n\r\f")
MOST_TEXT_BYTES = 4 << 30
"""Largest corpus of text files, which is held in memory."""
JSON_LINES = (".jsonl", ".ndjson")
PACKED = (".gz", ".zst", ".parquet")
"""Endings of files that are not text, but that `rampcli data build` reads."""


def wide_encoding(content: bytes) -> str | None:
    """Returns the name for iconv of an encoding with several bytes a character, or None."""
    for mark, name in MARKS.items():
        if content.startswith(mark):
            return name
    head = content[:LOOKED_AT_BYTES]
    if b"\0" not in head:
        return None
    plain = {name: _plain_characters(head, name) for name in WIDE_ENCODINGS}
    likeliest = max(WIDE_ENCODINGS, key=lambda name: plain[name])
    return likeliest if plain[likeliest] > 1 else None


def _plain_characters(head: bytes, encoding: str) -> int:
    """Returns how many characters of ASCII the beginning of a text has in an encoding.

    It is 0 if the beginning is not text in that encoding. Even texts without Latin letters have
    white space, which is somewhere else in the wrong byte order.
    """
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return 0
    return sum(map(str.isascii, text)) if CONTROLS.isdisjoint(text) else 0


def convert_remedy(content: bytes, *, file: str = "OLD.txt") -> str:
    """Returns how a text that is not UTF-8 becomes it.

    Args:
        content: the text, or its beginning.
        file: path of the text.
    """
    encoding = wide_encoding(content)
    if encoding is None and b"\0" in content:
        return "text in UTF-8"
    command = f"iconv -f {encoding or 'CP1252'} -t UTF-8 {shlex.quote(file)} > NEW.txt"
    origin = "" if encoding else ", if it is a text in a Western language from Windows"
    return f"text in UTF-8: `{command}`{origin}"


def read_texts(path: Path) -> list[str]:
    """Returns the text of a file, or of all files below a folder, sorted by name.

    Hidden files and folders are left out.

    Raises:
        UsageError: a file cannot be read or is not text, all files are JSON lines, or the text is
            too large for memory.
    """
    with reading(path, remedy="a text file or a folder"):
        files = text_files(path)
        if sum(file.stat().st_size for file in files) > MOST_TEXT_BYTES:
            raise UsageError(
                f"{path} has more than {MOST_TEXT_BYTES >> 30} GiB of text, which data.source=text"
                " would hold in memory",
                remedy=build_remedy(path),
            )
        if files and all(file.suffix in JSON_LINES for file in files):
            raise UsageError(
                f"{path} has JSON lines, and data.source=text would train on their braces and keys",
                remedy=build_remedy(path),
            )
        return [_decode(file, read_content(file, most_bytes=MOST_TEXT_BYTES)) for file in files]


def text_files(path: Path) -> list[Path]:
    """Returns a file itself, or all files below a folder that are not hidden, sorted by name."""
    if not path.is_dir():
        return [path]
    found = ((one, one.relative_to(path).parts) for one in path.rglob("*") if one.is_file())
    return sorted(one for one, parts in found if not any(part.startswith(".") for part in parts))


def is_plain_text(path: Path) -> bool:
    """Returns False if the name of a file says that only `rampcli data build` can read it."""
    return path.suffix not in (*JSON_LINES, *PACKED)


def build_remedy(path: Path) -> str:
    """Returns the command that builds a corpus of a file or a folder, and how to train on it."""
    output = path.parent / (path.name.partition(".")[0] or "corpus")
    if output.is_dir():
        output = output.with_name(f"{output.name}-corpus")
    return (
        f"`rampcli data build {shlex.quote(str(path))} --train-bpe 8192 --output"
        f" {shlex.quote(str(output))}`, and data=indexed data.path={output}"
    )


def _decode(file: Path, content: bytes) -> str:
    try:
        text = content.removeprefix(UTF_8_MARK).decode()
    except UnicodeDecodeError as error:
        raise _not_text(file, content, f"byte {error.start:,} is not UTF-8") from error
    if "\0" in text:
        raise _not_text(file, content, f"byte {content.index(0):,} is zero")
    return text


def _not_text(file: Path, content: bytes, reason: str) -> UsageError:
    """Returns the error for a file that is not text in UTF-8."""
    if not is_plain_text(file):
        remedy = build_remedy(file)
    else:
        remedy = convert_remedy(content, file=str(file))
    encoding = wide_encoding(content)
    found = reason if encoding is None else f"it is in {encoding}"
    return UsageError(f"{file} is not text in UTF-8: {found}", remedy=remedy)
