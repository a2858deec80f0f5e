"""Hostile Hugging Face folders and tokenizers."""

import json
from collections.abc import Callable
from typing import Any

from hostile.case import Case, case
from hostile.cases.run_files import ESCAPES, GENERATE
from hostile.cases.shards import make_honest
from hostile.materials import NEWER, OLDER, pretrain
from hostile.world import (
    Plant,
    World,
    cut,
    device,
    edit_json,
    fifo,
    folder,
    hostile_json,
    remove,
    write,
    write_json,
)

IMPORT = "import hf mine/model/x.yaml"
CONFIGS: dict[str, Callable[[Any], Any]] = {
    "a billion layers": lambda config: config.update(num_hidden_layers=10**9),
    "10^30 layers": lambda config: config.update(num_hidden_layers=10**30),
    "minus one layer": lambda config: config.update(num_hidden_layers=-1),
    "layers that are a string": lambda config: config.update(num_hidden_layers="2"),
    "layers that are a list": lambda config: config.update(num_hidden_layers=[2]),
    "layers that are true": lambda config: config.update(num_hidden_layers=True),
    "half a layer": lambda config: config.update(num_hidden_layers=0.5),
    "a hidden size that is null": lambda config: config.update(hidden_size=None),
    "a hidden size of zero": lambda config: config.update(hidden_size=0),
    "heads that are a mapping": lambda config: config.update(num_attention_heads={}),
    "no heads": lambda config: config.update(num_attention_heads=0),
    "a head that is a string": lambda config: config.update(head_dim="x"),
    "query groups of minus one": lambda config: config.update(num_key_value_heads=-1),
    "an epsilon that is NaN": lambda config: config.update(rms_norm_eps=float("nan")),
    "a base that is a string": lambda config: config.update(rope_theta="x"),
    "a base of infinity": lambda config: config.update(rope_theta=float("inf")),
    "a scaling that is a list": lambda config: config.update(rope_scaling=[1]),
    "a scaling that is a string": lambda config: config.update(rope_scaling="llama3"),
    "a scaling of type escape": lambda config: config.update(rope_scaling={"rope_type": ESCAPES}),
    "a scaling without factors": lambda config: config.update(rope_scaling={"rope_type": "llama3"}),
    "a scaling with a factor that is a string": lambda config: config.update(
        rope_scaling={
            "rope_type": "llama3",
            "factor": "x",
            "low_freq_factor": 1,
            "high_freq_factor": 4,
            "original_max_position_embeddings": [],
        }
    ),
    "a type with escape sequences": lambda config: config.update(model_type=ESCAPES),
    "a type that is a list": lambda config: config.update(model_type=["llama"]),
    "an activation with escape sequences": lambda config: config.update(hidden_act=ESCAPES),
    "tied embeddings that are a string": lambda config: config.update(tie_word_embeddings="no"),
    "a vocabulary of 10^20": lambda config: config.update(vocab_size=10**20),
    "a vocabulary of null": lambda config: config.update(vocab_size=None),
    "a spread that is a string": lambda config: config.update(initializer_range="x"),
}


def named_with_a_newline(world: World) -> None:
    """A folder whose name contains a newline, which would end a comment."""
    (world.here / "hf").rename(world.here / "hf\nseed: 5\n_target_: os.system")


def tokenizer(change: Callable[[Any], Any] | str | bytes) -> Plant:
    """Damages the tokenizers of both checkpoints and updates the manifests to match."""

    def plant(world: World) -> None:
        for checkpoint in (NEWER, OLDER):
            path = world.here / checkpoint / "tokenizer.json"
            if callable(change):
                content = json.loads(path.read_text())
                path.write_text(json.dumps(change(content) or content))
            else:
                path.write_bytes(change if isinstance(change, bytes) else change.encode())
            make_honest(world, checkpoint)

    return plant


def with_token(name: str, number: int, *, special: bool = True) -> Callable[[Any], None]:
    facts = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }
    return lambda content: content["added_tokens"].append({"id": number, "content": name, **facts})


TOKENIZERS: dict[str, Callable[[Any], Any]] = {
    "another kind of model": lambda content: content.update(model={"type": ESCAPES}),
    "a vocabulary that is a list": lambda content: content["model"].update(vocab=[1]),
    "numbers below zero": lambda content: content["model"]["vocab"].update(a=-1),
    "numbers of 10^30": lambda content: content["model"]["vocab"].update(a=10**30),
    "merges of missing tokens": lambda content: content["model"].update(merges=[[ESCAPES, "b"]]),
    "no vocabulary": lambda content: content["model"].update(vocab={}),
    "a decoder with escape sequences": lambda content: content.update(decoder={"type": ESCAPES}),
    "an expression that backtracks": lambda content: content.update(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": "(x+x+)+y("},
            "behavior": "Isolated",
            "invert": False,
        }
    ),
}
BUILD = "data build in.jsonl --output new --tokenizer theirs.json"
NEW = ("new.bin", "new.idx", "new.json", "new.tokenizer.json", "new.building")


def given(change: Callable[[Any], Any]) -> Plant:
    """Plants theirs.json, an altered copy of a valid tokenizer."""

    def plant(world: World) -> None:
        content = json.loads((world.here / "corpus.tokenizer.json").read_text())
        world.path("theirs.json").write_text(json.dumps(change(content) or content))

    return plant


WEIGHTS: dict[str, Plant] = {
    "a truncated file": cut("hf/model.safetensors"),
    "a header of 2^63 bytes": write("hf/model.safetensors", (2**63).to_bytes(8, "little") + b"{}"),
    "escape sequences": write("hf/model.safetensors", "\x1b[2J" * 100),
    "a FIFO": fifo("hf/model.safetensors"),
}
FROM_HF = pretrain("run_dir=new", "model.init_from=hf")

CASES: list[Case] = [
    *(
        case(
            f"a Hugging Face config.json, {name}: import",
            IMPORT,
            (2, 5),
            write("hf/config.json", text),
            uses=("hf",),
        )
        for name, text in hostile_json().items()
    ),
    *(
        case(
            f"a Hugging Face config.json, {name}: import",
            IMPORT,
            (2, 5),
            edit_json("hf/config.json", change),
            uses=("hf",),
        )
        for name, change in CONFIGS.items()
    ),
    *(
        case(
            f"a Hugging Face config.json is {name}: import",
            IMPORT,
            (2, 5),
            plant("hf/config.json"),
            uses=("hf",),
        )
        for name, plant in {
            "a FIFO": fifo,
            "a folder": folder,
            "an endless device": device,
            "gone": remove,
        }.items()
    ),
    *(
        case(
            f"a Hugging Face config.json, {name}: pretrain",
            FROM_HF,
            (2, 5),
            edit_json("hf/config.json", CONFIGS[name]),
            uses=("hf", "corpus"),
        )
        for name in (
            "layers that are a list",
            "a scaling that is a string",
            "a type with escape sequences",
        )
    ),
    *(
        case(
            f"model.safetensors, {name}: import",
            IMPORT,
            (0, 2, 5),
            plant,
            uses=("hf",),
            writes=("mine",),
        )
        for name, plant in WEIGHTS.items()
    ),
    case(
        "a Hugging Face folder named with a newline: import",
        "import 'hf\nseed: 5\n_target_: os.system' mine/model/x.yaml",
        (0, 2),
        named_with_a_newline,
        uses=("hf",),
        writes=("mine",),
    ),
    *(
        case(f"a checkpoint's tokenizer, {name}: generate", GENERATE, 5, tokenizer(text))
        for name, text in hostile_json().items()
    ),
    *(
        case(f"a checkpoint's tokenizer, {name}: generate", GENERATE, (2, 5), tokenizer(change))
        for name, change in TOKENIZERS.items()
    ),
    case(
        "a checkpoint's tokenizer, a special token with escape sequences: generate",
        GENERATE,
        (0, 5),
        tokenizer(with_token(ESCAPES, 256)),
    ),
    *(
        case(
            f"a corpus's tokenizer, {name}: inspect",
            "data inspect corpus",
            (2, 5),
            write("corpus.tokenizer.json", text),
            uses=("corpus",),
        )
        for name, text in hostile_json().items()
    ),
    case(
        "a corpus's tokenizer is a FIFO: inspect",
        "data inspect corpus",
        (2, 5),
        fifo("corpus.tokenizer.json"),
        uses=("corpus",),
    ),
    case(
        "a corpus's tokenizer is an endless device: inspect",
        "data inspect corpus",
        (2, 5),
        device("corpus.tokenizer.json"),
        uses=("corpus",),
    ),
    *(
        case(
            f"a tokenizer, {name}: build", BUILD, (2, 5), given(change), uses=("in.jsonl", "corpus")
        )
        for name, change in TOKENIZERS.items()
    ),
    case(
        "a tokenizer with a token with escape sequences: build",
        BUILD,
        (0, 2, 5),
        given(with_token(ESCAPES, 256)),
        uses=("in.jsonl", "corpus"),
        writes=NEW,
    ),
    case(
        "a tokenizer with escape sequences as its end of document: build",
        f"{BUILD} --eod none-such",
        2,
        given(with_token(ESCAPES, 256)),
        uses=("in.jsonl", "corpus"),
    ),
    case(
        "a tokenizer that is a FIFO: build", BUILD, (2, 5), fifo("theirs.json"), uses=("in.jsonl",)
    ),
    case(
        "a tokenizer that is an endless device: build",
        BUILD,
        (2, 5),
        device("theirs.json"),
        uses=("in.jsonl",),
    ),
    case(
        "a tokenizer that is a folder: build",
        BUILD,
        (2, 5),
        folder("theirs.json"),
        uses=("in.jsonl",),
    ),
    case(
        "a tokenizer that contains unrelated JSON: build",
        BUILD,
        (2, 5),
        write_json("theirs.json", {"step": ESCAPES}),
        uses=("in.jsonl",),
    ),
]
