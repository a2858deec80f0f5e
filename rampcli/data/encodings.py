"""Tells text in UTF-8 from text in another encoding."""

import codecs
import shlex

UTF_8_MARK = codecs.BOM_UTF8
MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Byte order marks that begin a text, and the name of its encoding for iconv."""
WIDE = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
"""Encodings of text without a mark, which fill most characters with zero bytes."""
LOOKED_AT_BYTES = 4096
CONTROLS = frozenset(map(chr, range(32))) - set("\t\n\r\f")


def wide_encoding(content: bytes) -> str | None:
    """Returns the name for iconv of an encoding with several bytes a character, or None."""
    for mark, name in MARKS.items():
        if content.startswith(mark):
            return name
    head = content[:LOOKED_AT_BYTES]
    if b"\0" not in head:
        return None
    plain = {name: _plain_characters(head, name) for name in WIDE}
    likeliest = max(WIDE, key=lambda name: plain[name])
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
