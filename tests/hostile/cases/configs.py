"""Hostile snapshots: run/config.yaml, read by generate, export and workers."""

from hostile.case import Case, case, each
from hostile.cases.run_files import EXPORT, GENERATE
from hostile.world import edit_bytes, edit_text, not_files, write

CONFIG = "run/config.yaml"


def bomb() -> str:
    """Nine levels of nine: a billion nodes."""
    levels = ["a: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [
        f"b{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 10)
    ]
    return "\n".join(levels)


TEXTS: dict[str, str | bytes] = {
    "an alias bomb": bomb(),
    "nothing": "",
    "a list": "- name: x\n",
    "a word": "run\n",
    "not YAML": "name: [unclosed\n",
    "deep lists": "[" * 20_000,
    "deep mappings": "\n".join(" " * depth + "a:" for depth in range(1_500)),
    "deep flow mappings": "{a: " * 10_000,
    "NUL bytes": b"\0" * 1000,
    "not UTF-8": b"name: \xff\xfe\n",
    "escape sequences": "\x1b[2Jname: \x1b[31m\n",
    "escape sequences, escaped": '"\\e[2J\\u202e": "\\e[31m"\n',
    "two documents": "name: a\n---\nname: b\n",
    "sixty megabytes": "# " + "x" * (60 * 2**20),
    "a hundred thousand unknown keys": "".join(f"key{number}: 1\n" for number in range(100_000)),
    "a Python object": "!!python/object/apply:os.system ['touch owned']\n",
}
EDITS: dict[str, tuple[str, str]] = {
    "an anchor and an alias": ("name: llama3_tiny", "name: &a llama3_tiny\nrun_dir: *a"),
    "an anchor": ("name: llama3_tiny", "name: &a llama3_tiny"),
    "a merge key": ("name: llama3_tiny", "<<: {name: x}\nname: llama3_tiny"),
    "a tag": ("name: llama3_tiny", "name: !!str llama3_tiny"),
    "a Python tag": ("name: llama3_tiny", "name: !!python/name:os.system"),
    "an object to build": ("model:", "model:\n  _target_: os.system"),
    "a reference": ("name: llama3_tiny", "name: ${oc.env:HOME}"),
    "a reference to itself": ("name: llama3_tiny", "name: ${name}"),
    "the same key twice": ("name: llama3_tiny", "name: llama3_tiny\nname: other"),
    "an unknown key": ("model:", "model:\n  no_such_key: 1"),
    "a section that is a number": ("model:\n", "model: 5\nmodel_was:\n"),
    "a billion layers": ("num_layers: 2", "num_layers: 1000000000"),
    "minus five layers": ("num_layers: 2", "num_layers: -5"),
    "no layers": ("num_layers: 2", "num_layers: 0"),
    "layers that are a string": ("num_layers: 2", "num_layers: two"),
    "layers that are a list": ("num_layers: 2", "num_layers: [2]"),
    "layers that are not a number": ("num_layers: 2", "num_layers: .nan"),
    "an endless number of layers": ("num_layers: 2", f"num_layers: {'9' * 5000}"),
    "a hidden size of 10^12": ("hidden_size: 32", "hidden_size: 1000000000000"),
    "a hidden size that heads do not divide": ("hidden_size: 32", "hidden_size: 33"),
    "no heads": ("num_attention_heads: 4", "num_attention_heads: 0"),
    "minus one query groups": ("num_query_groups: 2", "num_query_groups: -1"),
    "a vocabulary of 10^15": ("vocab_size: 256", "vocab_size: 1000000000000000"),
    "a vocabulary of zero": ("vocab_size: 256", "vocab_size: 0"),
    "sequences of 10^12": ("sequence_length: 16", "sequence_length: 1000000000000"),
    "sequences of minus sixteen": ("sequence_length: 16", "sequence_length: -16"),
    "an infinite base of rotations": ("rotary_base: 10000.0", "rotary_base: .inf"),
    "a base of rotations below zero": ("rotary_base: 10000.0", "rotary_base: -1.0"),
    "an epsilon that is NaN": ("norm_epsilon: 1.0e-05", "norm_epsilon: .nan"),
    "an unknown normalization": ("normalization: rmsnorm", "normalization: [rmsnorm]"),
    "an unknown accelerator": ("accelerator: cpu", "accelerator: quantum"),
    "a precision with escape sequences": ("precision: fp32", 'precision: "\\e[2J\\u202e"'),
    "a seed below zero": ("seed: 1234", "seed: -1"),
}
DAMAGED = {name: write(CONFIG, text) for name, text in TEXTS.items()} | {
    name: edit_text(CONFIG, *edit) for name, edit in EDITS.items()
}

CASES: list[Case] = [
    *each("config.yaml, {}: generate", GENERATE, 2, DAMAGED),
    *each(
        "config.yaml, {}: export",
        EXPORT,
        2,
        DAMAGED,
        of=("a billion layers", "minus five layers", "a tag", "an alias bomb"),
    ),
    case(
        "config.yaml, UTF-16: generate",
        GENERATE,
        2,
        edit_bytes(CONFIG, lambda content: content.decode().encode("utf-16")),
    ),
    *(
        row
        for command in (GENERATE, EXPORT, "status run")
        for row in each(
            f"config.yaml is {{}}: {command.split()[0]}",
            command,
            (2, 5),
            not_files(CONFIG, "a FIFO", "a folder", "an endless device"),
        )
    ),
]
