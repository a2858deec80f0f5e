"""Damaged shards of tensors, with the original manifests and with manifests made to match."""

import json
from collections.abc import Callable
from typing import Any

from hostile.case import Case, case, each
from hostile.cases.run_files import EXPORT, GENERATE
from hostile.materials import NEWER, OLDER, SHARD
from hostile.world import (
    DEEP,
    Plant,
    World,
    cut,
    edit_bytes,
    not_files,
)
from rampcli.files.checksums import page_sums

Header = dict[str, Any]
Change = Callable[[Header, bytes], tuple[Header, bytes] | bytes | None]


def make_honest(world: World, checkpoint: str) -> None:
    """Updates the manifest to the present sizes and checksums of the files."""
    path = world.here / checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    for name, facts in manifest["files"].items():
        content = (world.here / checkpoint / name).read_bytes()
        facts.update(bytes=len(content), sums=page_sums(content))
    path.write_text(json.dumps(manifest))


def packed(header: Header | bytes, data: bytes, *, length: int | None = None) -> bytes:
    """Returns a safetensors file with the given header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def unpacked(content: bytes) -> tuple[Header, bytes]:
    """Returns the header and the data of a safetensors file."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def shard(change: Change, *checkpoints: str) -> Plant:
    """Damages shards and updates the manifests to match."""

    def plant(world: World) -> None:
        for checkpoint in checkpoints:
            path = world.here / checkpoint / SHARD
            header, data = unpacked(path.read_bytes())
            changed = change(header, data)
            if not isinstance(changed, bytes):
                header, data = changed or (header, data)
                changed = packed(header, data)
            path.write_bytes(changed)
            make_honest(world, checkpoint)

    return plant


def first(header: Header) -> Any:
    """Returns the header entry of a weight of two dimensions."""
    return header["model.embedding.weight"]


def sharding(change: Callable[[Any], Any]) -> Change:
    """Changes the offsets of blocks within their tensors."""

    def apply(header: Header, _: bytes) -> None:
        places = json.loads(header["__metadata__"]["DCP_SHARDING_INFO"])
        header["__metadata__"]["DCP_SHARDING_INFO"] = json.dumps(change(places) or places)

    return apply


def shifted(header: Header, by: int) -> None:
    first(header)["data_offsets"] = [offset + by for offset in first(header)["data_offsets"]]


def duplicated(header: Header, data: bytes) -> bytes:
    """Repeats a tensor in the header; a JSON reader keeps only one of two equal keys."""
    text = json.dumps(header)
    return packed(
        text.replace(
            "{", '{"model.embedding.weight": ' + json.dumps(first(header)) + ", ", 1
        ).encode(),
        data,
    )


def overlapping(header: Header, _: bytes) -> None:
    """Lets two tensors share the same bytes."""
    names = [name for name in header if name != "__metadata__"]
    same = next(
        (a, b) for a in names for b in names if a < b and header[a]["shape"] == header[b]["shape"]
    )
    header[same[0]]["data_offsets"] = header[same[1]]["data_offsets"]


CHANGES: dict[str, Change] = {
    "offsets outside the file": lambda header, _: shifted(header, 10**9),
    "offsets of 2^70": lambda header, _: shifted(header, 2**70),
    "negative offsets": lambda header, _: shifted(header, -(10**6)),
    "offsets into the header": lambda header, _: shifted(header, -4),
    "offsets that end before they begin": lambda header, _: first(header)["data_offsets"].reverse(),
    "offsets that are texts": lambda header, _: first(header).update(data_offsets=["0", "4"]),
    "offsets that are fractions": lambda header, _: first(header).update(
        data_offsets=[float(at) for at in first(header)["data_offsets"]]
    ),
    "offsets of three": lambda header, _: first(header)["data_offsets"].append(0),
    "two overlapping tensors": overlapping,
    "a tensor twice": duplicated,
    "a tensor that is missing": lambda header, _: header.pop("model.embedding.weight") and None,
    "an unknown type": lambda header, _: first(header).update(dtype="F7"),
    "a type that is a list": lambda header, _: first(header).update(dtype=["F32"]),
    "another type of the same size": lambda header, _: first(header).update(dtype="I32"),
    "a shape of another order": lambda header, _: first(header)["shape"].reverse(),
    "a negative shape": lambda header, _: first(header).update(
        shape=[-side for side in first(header)["shape"]]
    ),
    "a shape of 10^18": lambda header, _: first(header).update(
        shape=[10**18, 0], data_offsets=[0, 0]
    ),
    "a shape of truths": lambda header, _: first(header).update(
        shape=[True, True], data_offsets=[0, 4]
    ),
    "a shape of a hundred dimensions": lambda header, _: first(header).update(
        shape=[1] * 100, data_offsets=[0, 4]
    ),
    "an entry that is a number": lambda header, _: header.update({"model.embedding.weight": 5}),
    "no metadata": lambda header, _: header.pop("__metadata__") and None,
    "metadata that is a list": lambda header, _: header.update(__metadata__=[]),
    "places that are not JSON": lambda header, _: header["__metadata__"].update(
        DCP_SHARDING_INFO="{"
    ),
    "deep places": lambda header, _: header["__metadata__"].update(DCP_SHARDING_INFO="[" * DEEP),
    "no places": sharding(lambda places: places.clear()),
    "places far outside": sharding(
        lambda places: places["model.embedding.weight"].update(saved_offsets=[10**18, 0])
    ),
    "negative places": sharding(
        lambda places: places["model.embedding.weight"].update(saved_offsets=[-1, 0])
    ),
    "places that are texts": sharding(
        lambda places: places["model.embedding.weight"].update(saved_offsets=["0", "0"])
    ),
    "a box that is not where it was": sharding(
        lambda places: places["model.embedding.weight"].update(saved_offsets=[128, 0])
    ),
    "bytes after the last tensor": lambda header, data: (header, data + b"\0" * 4096),
    "a truncated file": lambda header, data: (header, data[: len(data) // 2]),
    "a truncated header": lambda header, data: packed(header, data)[:500],
    "no bytes": lambda *_: b"",
    "seven bytes": lambda *_: b"\0" * 7,
    "a header of 2^63 bytes": lambda header, data: packed(header, data, length=2**63),
    "a header longer than the file": lambda header, data: packed(header, data, length=10**8),
    "a header of no bytes": lambda header, data: packed(header, data, length=0),
    "a header that is not JSON": lambda _, data: packed(b"\x1b[2J" * 100, data),
    "a header that is a list": lambda _, data: packed(b"[]", data),
    "a deep header": lambda _, data: packed(b"[" * DEEP, data),
    "a header that is not UTF-8": lambda _, data: packed(b'{"\xff": 1}', data),
}
OF_BOTH = (
    "offsets outside the file",
    "a truncated file",
    "two overlapping tensors",
    "bytes after the last tensor",
    "deep places",
    "a tensor twice",
)
HALF = f"{NEWER}/{SHARD}"
TOLD = {
    "truncated": cut(HALF),
    "longer": edit_bytes(HALF, lambda content: content + b"\0"),
    "with a flipped bit": edit_bytes(HALF, lambda content: content[:-1] + bytes([content[-1] ^ 1])),
}

CASES: list[Case] = [
    *(
        row
        for name, plants in {
            "with a manifest that fits,": {
                name: shard(change, NEWER) for name, change in CHANGES.items()
            },
            "that is": TOLD
            | not_files(HALF, "a FIFO", "a folder", "an endless device", "gone", "a link"),
        }.items()
        for row in each(
            f"a shard {name} {{}}: generate takes the previous checkpoint",
            GENERATE,
            0,
            plants,
            says='"step": 3',
        )
    ),
    *(
        case(
            f"all shards with manifests that fit, {name}: {command.split()[0]}",
            command,
            5,
            shard(CHANGES[name], NEWER, OLDER),
        )
        for name in OF_BOTH
        for command in (GENERATE, EXPORT)
    ),
    *each("a shard that is {}, and was requested: export", f"{EXPORT} --step 4", 5, TOLD),
    case(
        "a truncated shard: export takes the previous checkpoint",
        EXPORT,
        0,
        TOLD["truncated"],
        writes=("out",),
        says="step 3",
    ),
]
