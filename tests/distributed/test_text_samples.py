"""Texts that a run continues while it trains, on every mesh that trains."""

import json

import pytest

from tiny_runs import Run
from weights.generating import generate_here

PROMPTS = ["def f(", "class "]
MOST_TOKENS = 6
WORDS = [
    "data=text",
    f"data.path={__file__}",
    "data.sequence_length=32",
    "model.vocab_size=256",
    "model.rampup_batch_size=null",
    "model.global_batch_size=4",
    "data.micro_batch_size=1",
    "trainer.max_samples=12",
    "trainer.val_samples=0",
    "checkpoint.every_steps=2",
    "seed=7",
]
SAMPLES = [
    f"generate.prompts={json.dumps(PROMPTS)}",
    "generate.every_steps=2",
    f"generate.max_tokens={MOST_TOKENS}",
]
MESHES = {
    "one rank": (1, []),
    "one rank in bf16": (1, ["trainer.precision=bf16", "trainer.activation_checkpointing=full"]),
    "tensor and context": (
        4,
        ["parallel.tensor_parallel_size=2", "parallel.context_parallel_size=2"],
    ),
    "pipeline with a tied weight": (
        2,
        ["parallel.pipeline_parallel_size=2", "model.tie_embeddings=true"],
    ),
    "interleaved pipeline, sharded": (
        4,
        [
            "parallel.pipeline_parallel_size=2",
            "parallel.virtual_pipeline_parallel_size=2",
            "model.num_layers=4",
        ],
    ),
}


def generated(run: Run, prompt: str, step: int, capsys) -> str:
    """Returns the text that `rampcli generate` prints."""
    generate_here(run.path, prompt=prompt, step=step, max_tokens=MOST_TOKENS, seed=7, as_json=True)
    return json.loads(capsys.readouterr().out)["text"]


@pytest.mark.parametrize("mesh", MESHES)
def test_texts_are_those_of_the_checkpoints_and_training_is_the_same_without_them(
    mesh, run, tmp_path, capsys
):
    ranks, words = MESHES[mesh]
    run.workers(ranks, *WORDS, *SAMPLES, *words)
    found = run.events_of("samples")
    assert [row["step"] for row in found] == [2, 3]  # the last step is always sampled
    for row in found:
        assert row["samples_s"] > 0
        assert [text["prompt"] for text in row["texts"]] == PROMPTS
        for text in row["texts"]:
            assert text["text"] == generated(run, text["prompt"], row["step"], capsys)
    assert len({text["text"] for row in found for text in row["texts"]}) > 1
    without = Run(tmp_path / "without")
    without.workers(ranks, *WORDS, *words)
    assert [(row["loss"], row["grad_norm"]) for row in run.rows] == [
        (row["loss"], row["grad_norm"]) for row in without.rows
    ]


def test_texts_that_a_stop_has_prevented_are_made_up_for_when_the_run_resumes(run):
    words = [*WORDS, *SAMPLES]
    run.workers(2, *words, "trainer.max_samples=8")
    (row,) = run.events_of("samples")
    events = [each for each in run.events if each != row]
    run.directory.events.write_text("".join(json.dumps(each) + "\n" for each in events))
    for _ in range(2):
        run.workers(2, *words, "trainer.max_samples=16")
        found = run.events_of("samples")
        assert [each["step"] for each in found] == [2, 4]
        assert found[0]["texts"] == row["texts"]
