"""The published runs of docs/examples/phases, planned as their sources say."""

from pathlib import Path

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.planning.resolve import resolve

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples" / "phases"


def planned(recipe, name, *words):
    words = (f"published={name}", "model.vocab_size=128256", *words)
    return resolve(apply_overrides(llm.from_factory(recipe), words, config_dir=FOLDER))


def facts(resolved):
    """Name, steps, tokens of a step and length of each phase."""
    return [
        (
            phase.name,
            phase.steps,
            phase.stages[-1].global_batch_size * phase.sequence_length,
            phase.sequence_length,
        )
        for phase in resolved.plan.phases
    ]


def rate_at_step(resolved, step):
    consumed = resolved.plan.samples_at(step)
    phase = resolved.trained_by(consumed)
    size = resolved.plan.stage_at(consumed - 1).global_batch_size
    return phase.rate.at(consumed, global_batch_size=size)


def test_smollm3():
    run = planned("llama32_3b", "smollm3")
    assert facts(run) == [
        ("stable1", 3_450_000, 2_359_296, 4096),
        ("stable2", 748_000, 2_359_296, 4096),
        ("decay", 522_000, 2_359_296, 4096),
        ("long32", 20_000, 2_359_296, 32_768),
        ("long64", 22_000, 2_359_296, 65_536),
    ]
    assert [stage.data_parallel_size for stage in run.plan.stages] == [192, 192, 192, 12, 12]
    assert [stage.accumulate_grad_batches for stage in run.plan.stages] == [1, 1, 1, 6, 3]
    for step, rate in ((1000, 1e-4), (2000, 2e-4), (4_198_000, 2e-4), (4_459_000, 1e-4)):
        assert rate_at_step(run, step) == pytest.approx(rate)
    assert rate_at_step(run, 4_720_000) == pytest.approx(0, abs=1e-12)
    assert rate_at_step(run, 4_721_000) == pytest.approx(2e-5)


def test_olmo3_7b():
    run = planned("llama2_7b", "olmo3_7b")
    assert facts(run) == [
        ("pretrain", 1_413_814, 2**22, 8192),
        ("midtrain", 47_684, 2**21, 8192),
        ("long", 11_921, 2**22, 65_536),
    ]
    assert run.plan.phases[1].stages[0].samples * 8192 == pytest.approx(100e9, rel=1e-4)
    assert rate_at_step(run, 1_413_814) == pytest.approx(2.0712e-4)
    assert rate_at_step(run, 1_413_814 + 23_842) == pytest.approx(2.0712e-4 / 2)
    assert rate_at_step(run, 1_461_498 + 200) == pytest.approx(2.0712e-4)


def test_modded_nanogpt():
    run = planned("gpt3_126m", "modded_nanogpt")
    assert [steps for _, steps, *_ in facts(run)] == [428, 429, 428, 15]
    assert [tokens for *_, tokens, _ in facts(run)] == [129_024, 2**18, 393_216, 393_216]
    factors = [rate_at_step(run, step) / 1e-3 for step in (400, 500)]
    assert factors == pytest.approx([1, 1.52])
    assert rate_at_step(run, 858) / rate_at_step(run, 857) == pytest.approx(1.73 / 1.52, rel=0.01)


def test_deepseek_v4_flash():
    ends = ("phases.k4.until=20T", "phases.k16.until=28T", "phases.k64.until=31T")
    words = ("trainer.num_nodes=288", "rampup.node_policy=best")
    mesh = ("parallel.context_parallel_size=1", "phases.m1.parallel.context_parallel_size=8")
    run = planned("llama3_70b", "deepseek_v4_flash", *ends, *words, *mesh)
    assert {tokens for _, _, tokens, _ in facts(run)} == {75_497_472}
    assert [length for *_, length in facts(run)] == [2**12, 2**14, 2**16, 2**20]
    assert run.plan.end_tokens == pytest.approx(32e12, rel=1e-5)
    assert rate_at_step(run, 2000) == pytest.approx(2.7e-4)
    assert rate_at_step(run, run.plan.end_step) == pytest.approx(2.7e-5)
