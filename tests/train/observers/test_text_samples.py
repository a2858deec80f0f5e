import os
import signal

import pytest
import torch

from rampcli.checkpoint.state import TrainingState
from rampcli.data.special_tokens import SpecialTokens
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.errors import UsageError
from rampcli.runs.directory import RunDirectory
from rampcli.runs.rows import read_rows
from rampcli.train.observers.text_samples import TextSamples
from rampcli.train.whole_model import plain_model

STATE = TrainingState(step=4, consumed_samples=16)


@pytest.fixture
def build(build_passes, planned, stop, tmp_path):
    """Builds the observer of a tiny model, with a run directory of its own."""

    def samples(
        tokenizer: str | None = byte_tokenizer().to_str(), ends: tuple[int, ...] = ()
    ) -> TextSamples:
        words = ["generate.prompts=[ROMEO,JULIET]", "generate.max_tokens=5"]
        resolved = planned("llama3_tiny", *words)
        passes = build_passes(resolved.config)
        run = RunDirectory(tmp_path)
        return TextSamples(
            run,
            resolved.plan,
            resolved.config,
            passes,
            tokenizer=tokenizer,
            special_tokens=SpecialTokens(ends=ends),
            stop=stop,
        )

    return samples


def events_of(samples: TextSamples) -> list[dict]:
    return list(read_rows(samples.run.events))


def test_a_model_that_has_diverged_gives_a_warning_and_no_text(build):
    samples = build()
    with torch.no_grad():
        samples.passes.parts[0].embedding.weight.fill_(torch.nan)
    samples.sample(STATE)
    (fault,) = events_of(samples)
    assert fault["event"] == "fault"
    assert fault["reason"].startswith("no text samples at step 4: the model's logits are not")


def test_a_copy_that_does_not_fit_into_memory_gives_a_warning_and_no_text(build):
    samples = build()
    samples.is_split = True
    samples.config.model.vocab_size, samples.config.model.hidden_size = 10**8, 10**7
    samples.sample(STATE)
    (fault,) = events_of(samples)
    assert fault["event"] == "fault"
    assert fault["reason"].startswith("no text samples at step 4: ")


def test_a_text_stops_before_its_end(build):
    build().sample(STATE)
    build(ends=tuple(range(256))).sample(STATE)
    whole, stopped = ([text["text"] for text in event["texts"]] for event in events_of(build()))
    assert all(whole)
    assert stopped == ["", ""]


def test_a_run_that_must_stop_does_not_wait_for_texts(build):
    samples = build()
    os.kill(os.getpid(), signal.SIGTERM)
    samples.sample(STATE)
    assert events_of(samples) == []


def test_a_run_that_must_stop_between_two_prompts_leaves_both_texts_out(build, monkeypatch):
    samples = build()
    continue_prompt = samples._continue

    def continue_and_be_stopped(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return continue_prompt(*arguments)

    monkeypatch.setattr(samples, "_continue", continue_and_be_stopped)
    samples.sample(STATE)
    assert events_of(samples) == []


def test_a_corpus_without_a_tokenizer_is_refused(build):
    with pytest.raises(UsageError) as refused:
        build(tokenizer=None)
    assert refused.value.keys[0] == "generate.prompts"


def test_the_weights_of_a_model_that_is_not_split_are_not_copied(build):
    samples = build()
    trained = samples.passes.parts[0]
    model = plain_model(trained, samples.config)
    for (name, weight), (same, shared) in zip(
        trained.named_parameters(), model.named_parameters(), strict=True
    ):
        assert (name, weight.data_ptr()) == (same, shared.data_ptr())
        assert weight.requires_grad
        assert not shared.requires_grad
