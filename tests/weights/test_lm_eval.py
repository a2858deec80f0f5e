"""An exported model in lm-evaluation-harness, on tasks whose data are beside this file."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.families import FAMILIES
from rampcli.data.special_tokens import SpecialTokens
from rampcli.data.tokenizer import train_bpe
from rampcli.models.decoder import Decoder
from rampcli.weights.export import export

TASKS = Path(__file__).with_name("lm_eval_tasks")
EVALUATE = """
import json, sys
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

model, tasks = sys.argv[1:]
evaluated = simple_evaluate(
    "hf",
    model_args=f"pretrained={model}",
    tasks=["choices", "prose"],
    task_manager=TaskManager(include_path=tasks, include_defaults=False),
    batch_size=4,
    device="cpu",
    bootstrap_iters=0,
)
print(json.dumps(evaluated["results"]))
"""
"""The program `lm_eval` would also read the 14,000 files of its own tasks."""


def rows_of(name: str) -> list[dict]:
    return [json.loads(line) for line in (TASKS / name).read_text().splitlines()]


@torch.no_grad()
def log_prob(model: Decoder, context: list[int], tokens: list[int]) -> float:
    """Returns the natural logarithm of the probability of tokens after a context."""
    read = torch.tensor([[*context, *tokens]])
    log_probs = model(read[:, :-1])[0, len(context) - 1 :].log_softmax(dim=-1)
    return log_probs.gather(1, read[0, len(context) :, None]).sum().item()


def test_the_harness_measures_what_the_decoder_computes(trained, tmp_path):
    texts = [row["text"] for row in rows_of("prose.jsonl")]
    tokenizer = train_bpe(iter(texts * 4), 300)
    end = tokenizer.token_to_id("<|endoftext|>")
    run, model = trained(
        "llama3",
        tokenizer.to_str(),
        replace(FAMILIES["llama3"], vocab_size=300),
        SpecialTokens(ends=(end,)),
        sequence_length=128,
    )
    export(run, tmp_path / "out")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    ended = subprocess.run(
        [sys.executable, "-c", EVALUATE, tmp_path / "out", TASKS],
        cwd=TASKS,
        env=os.environ | offline,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text).ids

    def likeliest(row: dict) -> int:
        scores = [
            log_prob(model, encode(row["question"]), encode(choice)) for choice in row["choices"]
        ]
        return scores.index(max(scores))

    rows = rows_of("choices.jsonl")
    right = [likeliest(row) == row["answer"] for row in rows]
    assert found["choices"]["acc,none"] == pytest.approx(sum(right) / len(right))
    nats = -sum(log_prob(model, [end], encode(text)) for text in texts)
    bits = nats / math.log(2) / sum(len(text.encode()) for text in texts)
    assert found["prose"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)
