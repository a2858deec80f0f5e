"""Damages bytes, JSON, YAML, tensor files, indexes and command lines at random, from a seed."""

import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"
NUMBERS = (
    0,
    1,
    -1,
    2,
    255,
    2**31 - 1,
    -(2**31),
    2**31,
    2**32,
    2**53 + 1,
    2**62,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64 - 1,
    2**70,
    10**30,
)
VALUES: tuple[Any, ...] = (
    *NUMBERS,
    *(
        None,
        True,
        False,
        "",
        "x",
        "0",
        "-1",
        "nan",
        ".inf",
        "1e400",
        "../../x",
        "/etc/passwd",
        "--help",
        "${oc.env:HOME}",
        "???",
    ),
    *(
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
        [],
        {},
        [[]],
        [None],
        {"": {}},
        ESCAPES,
        "\0",
        "\n",
        "x" * 5000,
        [0] * 1000,
    ),
)
PIECES = (
    b"\0",
    b"\xff\xfe",
    b"[" * 5000,
    b'{"a":' * 2000,
    b"\x1b[2J",
    "\u202e".encode(),
    b"9" * 5000,
    b"NaN",
    b"-1",
    b"\n",
    b'"',
    b"}",
    b"null",
)
LINES = (
    "  " * 300 + "a:",
    "<<: {a: 1}",
    "&a b: *a",
    "? [",
    "- x",
    "---",
    "...",
    "%YAML 1.2",
    "_target_: os.system",
    '"\\e[2J": 1',
    "\tx: 1",
    "[" * 500,
)
WORDS = (
    "--",
    "-",
    "=",
    "a=",
    "=a",
    "[",
    "]",
    "model",
    "model.",
    "--json",
    "--step=5",
    "-h",
    "'",
    '"',
    "\\",
    "*",
    "~",
    "@",
    "{}",
    "+a=1",
    "~model",
    "a=b=c",
)

Mutation = Callable[[Random, bytes], bytes]


def bytes_at_random(random: Random, content: bytes) -> bytes:
    """Flips, cuts, repeats and inserts bytes."""
    for _ in range(random.choice((1, 1, 2, 5))):
        first = random.randrange(len(content) + 1)
        last = min(len(content), first + random.choice((1, 2, 8, 100, 5000)))
        inserted = {
            "flip": bytes(byte ^ (1 << random.randrange(8)) for byte in content[first : first + 1])
            + content[first + 1 : last],
            "remove": b"",
            "repeat": content[first:last] * 2,
            "insert": random.choice(PIECES) + content[first:last],
            "replace": random.choice(PIECES),
            "overwrite": random.randbytes(last - first),
        }
        content = content[:first] + inserted[random.choice(list(inserted))] + content[last:]
        if random.random() < 0.1:
            content = content[: random.randrange(len(content) + 1)]
    return content


def json_at_random(random: Random, content: bytes) -> bytes:
    """Changes values, keys and shapes of a JSON text, or its bytes."""
    if random.random() < 0.2:
        return bytes_at_random(random, content)
    tree = json.loads(content)
    for _ in range(random.choice((1, 1, 1, 3))):
        tree = _changed(random, tree)
    return json.dumps(tree).encode()


def rows_at_random(random: Random, content: bytes) -> bytes:
    """Changes one row of JSON lines."""
    rows = content.splitlines(keepends=True)
    number = random.randrange(len(rows))
    rows[number] = json_at_random(random, rows[number]) + random.choice(
        (b"\n", b"\n", b"\n", b"", b"\r\n")
    )
    return b"".join(rows)


def _changed(random: Random, tree: Any) -> Any:
    """Returns a tree with one change at a random depth."""
    if isinstance(tree, dict) and tree and random.random() < 0.8:
        key = random.choice(list(tree))
        if random.random() < 0.1:
            return {name: value for name, value in tree.items() if name != key}
        if random.random() < 0.1:
            return {
                random.choice((ESCAPES, "", "../x", f"{key}x")) if name == key else name: value
                for name, value in tree.items()
            }
        return tree | {key: _changed(random, tree[key])}
    if isinstance(tree, list) and tree and random.random() < 0.8:
        place = random.randrange(len(tree))
        return [
            *tree[:place],
            *random.choice(([], [tree[place]] * 2, [_changed(random, tree[place])])),
            *tree[place + 1 :],
        ]
    if isinstance(tree, int) and not isinstance(tree, bool) and random.random() < 0.5:
        return random.choice(
            (tree + 1, tree - 1, -tree, tree * 2, tree * 10**9, str(tree), float(tree))
        )
    return random.choice(VALUES)


def yaml_at_random(random: Random, content: bytes) -> bytes:
    """Changes values and lines of a YAML text, or its bytes."""
    if random.random() < 0.15:
        return bytes_at_random(random, content)
    lines = content.decode().splitlines()
    for _ in range(random.choice((1, 1, 1, 3))):
        number = random.randrange(len(lines))
        key, colon, _ = lines[number].partition(":")
        value = random.choice(VALUES)
        is_plain = isinstance(value, str) and random.random() < 0.5
        changed = {
            "value": [f"{key}: {value if is_plain else json.dumps(value)}"],
            "line": [lines[number], random.choice(LINES)],
            "gone": [],
            "twice": [lines[number]] * 2,
            "deeper": [f"  {lines[number]}"],
            "bare": [f"{key}{colon}"],
        }
        lines[number : number + 1] = changed[random.choice(["value", "value", "value", *changed])]
        lines = lines or [""]
    return "\n".join(lines).encode()


def tensors_at_random(random: Random, content: bytes) -> bytes:
    """Changes the header of a safetensors file, its length, or bytes."""
    if random.random() < 0.2:
        return bytes_at_random(random, content)
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]
    tree = json.loads(header)
    if random.random() < 0.3 and "__metadata__" in tree:
        inner = tree["__metadata__"].get("DCP_SHARDING_INFO", "{}")
        tree["__metadata__"]["DCP_SHARDING_INFO"] = json_at_random(random, inner.encode()).decode(
            errors="replace"
        )
    else:
        tree = _changed(random, tree)
    header = json.dumps(tree).encode()
    if random.random() < 0.7:  # so that the offsets of the rest still fit
        header = header.ljust(length)
    told = len(header) if random.random() < 0.9 else abs(random.choice(NUMBERS)) % 2**64
    return (
        told.to_bytes(8, "little")
        + header
        + random.choice((data, data, data, data[:-1], data + b"\0", b""))
    )


def numbers_at_random(random: Random, content: bytes) -> bytes:
    """Overwrites numbers of an index, or its bytes."""
    if random.random() < 0.2:
        return bytes_at_random(random, content)
    for _ in range(random.choice((1, 1, 2))):
        kind = random.choice("iqB")
        size = struct.calcsize(f"<{kind}")
        at = random.choice((9, 17, 18, 26, random.randrange(34, max(35, len(content) - size))))
        number = (
            random.choice(
                (
                    *NUMBERS,
                    int.from_bytes(content[at : at + size], "little")
                    + random.choice((-2, -1, 1, 2)),
                )
            )
            % 256**size
        )
        content = content[:at] + number.to_bytes(size, "little") + content[at + size :]
    return content


def words_at_random(random: Random, words: Sequence[str]) -> list[str]:
    """Changes words of a command line except the first."""
    changed = list(words)
    for _ in range(random.choice((1, 1, 2, 3))):
        place = random.randrange(1, len(changed) + 1)
        word = changed[place] if place < len(changed) else ""
        key, equals, value = word.partition("=")
        nasty = random.choice(VALUES)
        text = nasty if isinstance(nasty, str) else json.dumps(nasty)
        if equals and random.random() < 0.6:
            word = f"{key}={text}"
        elif value and random.random() < 0.3:
            word = f"{key}={value}{text[:20]}"
        else:
            word = random.choice(
                (text, random.choice(WORDS), word[: random.randrange(len(word) + 1)], word + word)
            )
        changed[place : place + random.choice((0, 1, 1))] = [word.replace("\0", "") or "x"]
    return changed
