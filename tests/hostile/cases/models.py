"""Hostile Hugging Face folders and tokenizers."""

import json
from collections.abc import Callable
from typing import Any

from hostile.case import Case, case, each
from hostile.cases.run_files import ESCAPES, GENERATE
from hostile.cases.shards import make_honest
from hostile.materials import NEWER, OLDER, pretrain
from hostile.world import (
    Change,
    Plant,
    World,
    changed,
    cut,
    edit_json,
    edits,
    fifo,
    hostile_json,
    not_files,
    not_json,
    write,
    write_json,
)

IMPORT, INSPECT = "import hf mine/model/x.yaml", "data inspect corpus"
ON_THE_CORPUS = ("in.jsonl", "corpus")
CONFIGS: dict[str, Change] = {
    "a billion layers": {"num_hidden_layers": 10**9},
    "10^30 layers": {"num_hidden_layers": 10**30},
    "minus one layer": {"num_hidden_layers": -1},
    "layers that are a string": {"num_hidden_layers": "2"},
    "layers that are a list": {"num_hidden_layers": [2]},
    "layers that are true": {"num_hidden_layers": True},
    "half a layer": {"num_hidden_layers": 0.5},
    "a hidden size that is null": {"hidden_size": None},
    "a hidden size of zero": {"hidden_size": 0},
    "heads that are a mapping": {"num_attention_heads": {}},
    "no heads": {"num_attention_heads": 0},
    "a head that is a string": {"head_dim": "x"},
    "query groups of minus one": {"num_key_value_heads": -1},
    "an epsilon that is NaN": {"rms_norm_eps": float("nan")},
    "a base that is a string": {"rope_theta": "x"},
    "a base of infinity": {"rope_theta": float("inf")},
    "a scaling that is a list": {"rope_scaling": [1]},
    "a scaling that is a string": {"rope_scaling": "llama3"},
    "a scaling of type escape": {"rope_scaling": {"rope_type": ESCAPES}},
    "a scaling without factors": {"rope_scaling": {"rope_type": "llama3"}},
    "a scaling with a factor that is a string": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": "x",
            "low_freq_factor": 1,
            "high_freq_factor": 4,
            "original_max_position_embeddings": [],
        }
    },
    "a type with escape sequences": {"model_type": ESCAPES},
    "a type that is a list": {"model_type": ["llama"]},
    "an activation with escape sequences": {"hidden_act": ESCAPES},
    "tied embeddings that are a string": {"tie_word_embeddings": "no"},
    "a vocabulary of 10^20": {"vocab_size": 10**20},
    "a vocabulary of null": {"vocab_size": None},
    "a spread that is a string": {"initializer_range": "x"},
}


def named_with_a_newline(world: World) -> None:
    """A folder whose name contains a newline, which would end a comment."""
    (world.here / "hf").rename(world.here / "hf\nseed: 5\n_target_: os.system")


def tokenizer(change: Change | str | bytes) -> Plant:
    """Damages the tokenizers of both checkpoints and updates the manifests to match."""

    def plant(world: World) -> None:
        for checkpoint in (NEWER, OLDER):
            name = f"{checkpoint}/tokenizer.json"
            plant_it = (
                write(name, change) if isinstance(change, str | bytes) else edit_json(name, change)
            )
            plant_it(world)
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


TOKENIZERS: dict[str, Change] = {
    "another kind of model": {"model": {"type": ESCAPES}},
    "a vocabulary that is a list": lambda content: content["model"].update(vocab=[1]),
    "numbers below zero": lambda content: content["model"]["vocab"].update(a=-1),
    "numbers of 10^30": lambda content: content["model"]["vocab"].update(a=10**30),
    "merges of missing tokens": lambda content: content["model"].update(merges=[[ESCAPES, "b"]]),
    "no vocabulary": lambda content: content["model"].update(vocab={}),
    "a decoder with escape sequences": {"decoder": {"type": ESCAPES}},
    "an expression that backtracks": {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "(x+x+)+y("},
            "behavior": "Isolated",
            "invert": False,
        }
    },
}
BUILD = "data build in.jsonl --output new --tokenizer theirs.json"
NEW = ("new.bin", "new.idx", "new.json", "new.tokenizer.json", "new.building")


def given(change: Change) -> Plant:
    """Plants theirs.json, an altered copy of a valid tokenizer."""

    def plant(world: World) -> None:
        content = json.loads((world.here / "corpus.tokenizer.json").read_text())
        world.path("theirs.json").write_text(json.dumps(changed(content, change)))

    return plant


WEIGHTS: dict[str, Plant] = {
    "a truncated file": cut("hf/model.safetensors"),
    "a header of 2^63 bytes": write("hf/model.safetensors", (2**63).to_bytes(8, "little") + b"{}"),
    "escape sequences": write("hf/model.safetensors", "\x1b[2J" * 100),
    "a FIFO": fifo("hf/model.safetensors"),
}
FROM_HF = pretrain("run_dir=new", "model.init_from=hf")

CONFIG, TOKENIZER = "hf/config.json", "corpus.tokenizer.json"

CASES: list[Case] = [
    *each(
        "a Hugging Face config.json, {}: import",
        IMPORT,
        (2, 5),
        not_json(CONFIG) | edits(CONFIG, CONFIGS),
        uses=("hf",),
    ),
    *each(
        "a Hugging Face config.json is {}: import",
        IMPORT,
        (2, 5),
        not_files(CONFIG, "a FIFO", "a folder", "an endless device", "gone"),
        uses=("hf",),
    ),
    *each(
        "a Hugging Face config.json, {}: pretrain",
        FROM_HF,
        (2, 5),
        edits(CONFIG, CONFIGS),
        of=(
            "layers that are a list",
            "a scaling that is a string",
            "a type with escape sequences",
        ),
        uses=("hf", "corpus"),
    ),
    *each(
        "model.safetensors, {}: import", IMPORT, (0, 2, 5), WEIGHTS, uses=("hf",), writes=("mine",)
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
    *each(
        "a corpus's tokenizer, {}: inspect", INSPECT, (2, 5), not_json(TOKENIZER), uses=("corpus",)
    ),
    *each(
        "a corpus's tokenizer is {}: inspect",
        INSPECT,
        (2, 5),
        not_files(TOKENIZER, "a FIFO", "an endless device"),
        uses=("corpus",),
    ),
    *(
        case(f"a tokenizer, {name}: build", BUILD, (2, 5), given(change), uses=ON_THE_CORPUS)
        for name, change in TOKENIZERS.items()
    ),
    case(
        "a tokenizer with a token with escape sequences: build",
        BUILD,
        (0, 2, 5),
        given(with_token(ESCAPES, 256)),
        uses=ON_THE_CORPUS,
        writes=NEW,
    ),
    case(
        "a tokenizer with escape sequences as its end of document: build",
        f"{BUILD} --eod none-such",
        2,
        given(with_token(ESCAPES, 256)),
        uses=ON_THE_CORPUS,
    ),
    *each(
        "a tokenizer that {}: build",
        BUILD,
        (2, 5),
        {
            f"is {kind}": plant
            for kind, plant in not_files(
                "theirs.json", "a FIFO", "an endless device", "a folder"
            ).items()
        }
        | {"contains unrelated JSON": write_json("theirs.json", {"step": ESCAPES})},
        uses=("in.jsonl",),
    ),
]
