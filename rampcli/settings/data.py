"""The settings of the data."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from rampcli.settings.facts import (
    COST,
    HELD_OUT,
    LEARNING,
    NOTHING,
    SAME_SAMPLES,
    SAMPLES,
    SPEED,
    SPLIT,
    VALIDATION,
    any_phase,
    whole_run,
)
from rampcli.settings.fields import Extensible, setting

SOURCES = ("stdlib", "mock", "indexed", "text", "pairs")
"""Data sources that `rampcli.data.sources` opens."""
MOST_SEQUENCE = 16_000_000
"""Longest sample. A wrong number is refused before anything is allocated."""


@dataclass(kw_only=True, slots=True)
class DataConfig(Extensible):
    """Where samples come from, and how they are cut and masked."""

    of_extensions: ClassVar = whole_run(LEARNING | COST, SAME_SAMPLES)
    source: str = setting(
        "stdlib",
        "Where samples come from. `indexed`: tokens written by `rampcli data build` or by"
        " Megatron's preprocessing. `text`: text files, read into memory. `pairs`: prompts and"
        " responses, of a file or a task. `stdlib`: the source of Python's standard library, as"
        " bytes. `mock`: random tokens.",
        whole_run(SAMPLES, SAME_SAMPLES),
        choices=SOURCES,
        extensible=True,
    )
    sequence_length: int = setting(
        128,
        "Length of a sample.",
        any_phase(SAMPLES | VALIDATION | COST),
        unit="tokens",
        at_least=1,
        at_most=MOST_SEQUENCE,
    )
    micro_batch_size: int | None = setting(
        None,
        "Samples per data-parallel rank in one forward and backward pass. `null`: derived.",
        any_phase(SPLIT | COST).unread_by_rl(
            ", whose micro batches are counted in pairs: rl.micro_batch_size", "rl.micro_batch_size"
        ),
        unit="samples",
        at_least=1,
    )
    path: str | None = setting(
        None,
        "Corpus. For `indexed`, the common prefix of its two files; for `text`, a file or folder;"
        " for `pairs`, a file of JSON lines. `null`: no corpus, or the corpora in `blend`.",
        any_phase(LEARNING | HELD_OUT),
        example="data/wiki",
    )
    blend: list[str] | None = setting(
        None,
        "Several corpora with weights, `[0.7,data/wiki,0.3,data/code]`; each path as in `path`."
        " `null`: one corpus.",
        any_phase(LEARNING | HELD_OUT),
        example=[0.7, "data/wiki", 0.3, "data/code"],
    )
    split: list[float] = setting(
        [99.0, 1.0, 0.0],
        "Shares of each corpus for training, validation and testing. Documents are divided in their"
        " order; a single document is divided by tokens. `pairs` are divided by a hash of the"
        " prompt.",
        any_phase(SAMPLES | HELD_OUT),
        example=[98, 1, 1],
    )
    validation_path: str | None = setting(
        None,
        "Corpus that is used only for validation, instead of the share in `split`. `null`: use"
        " `split`.",
        any_phase(VALIDATION),
    )
    validation: dict[str, str] | None = setting(
        None,
        "Corpora that are used only for validation, `{wiki:data/wiki,code:data/code}`; each path as"
        " in `path`. Each is validated on its own, on `trainer.val_samples` samples. The second"
        " share in `split` is then not read. `null`: not set.",
        any_phase(VALIDATION).unread_by_rl(
            ", which evaluates one set of prompts", "data.validation_path"
        ),
        example={"wiki": "data/wiki", "code": "data/code"},
    )
    tokenizer: str = setting(
        "bytes",
        "Tokenizer for `text` and `pairs`: `bytes`, `chars` (the characters of the text), a"
        " `tokenizer.json` or its folder, or a model of the Hugging Face hub as `NAME@COMMIT`.",
        whole_run(LEARNING, "a token stands for the same text in the whole run"),
    )
    task: Literal["sort", "reverse", "add"] | None = setting(
        None,
        "Built-in task for `pairs`, instead of a file: `sort` or `reverse` the digits of a number,"
        " or `add` two numbers. `null`: the file in `path`.",
        whole_run(SAMPLES, SAME_SAMPLES),
        example="sort",
    )
    task_digits: int = setting(
        8,
        "Digits of each number of the task.",
        whole_run(SAMPLES, SAME_SAMPLES),
        unit="digits",
        at_least=1,
        at_most=64,
    )
    response_end: str | None = setting(
        None,
        "Text of the token that ends a response of `pairs`. `null`: the tokenizer's end-of-document"
        " token, or a new line if its tokens are bytes or characters.",
        whole_run(SAMPLES, SAME_SAMPLES),
        example="'<|im_end|>'",
    )
    chat_template: Literal["auto", "none"] = setting(
        "auto",
        "How a prompt of `pairs` is written. `auto`: as a user's message in the chat template that"
        " is beside the `tokenizer.json`, if there is one. `none`: as it is.",
        whole_run(SAMPLES, SAME_SAMPLES),
    )
    eod_mask_loss: bool = setting(
        False,
        "Exclude each document's first token from the loss, because nothing predicts it.",
        any_phase(LEARNING | VALIDATION),
    )
    document_mask: bool = setting(
        False,
        "Restart attention and positions at each document, and exclude its first token from the"
        " loss. `pairs` need it.",
        any_phase(LEARNING | VALIDATION | COST),
    )
    pad_last_window: bool = setting(
        False,
        "Pad the tokens after the last whole sample to one more sample.",
        any_phase(SAMPLES | VALIDATION),
    )
    expansion_factor_real_data: float | None = setting(
        None,
        "Above 1: one host in this many reads data and sends the others their samples. `null`, up"
        " to 1, or MaxText's -1: every host reads its own.",
        any_phase(SPEED),
    )
    audit_order: bool = setting(
        False,
        "Record which samples the ranks read, as `order_hash` in `metrics.jsonl`.",
        whole_run(NOTHING, SAME_SAMPLES),
    )
