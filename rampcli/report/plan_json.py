"""A plan as plain data."""

from dataclasses import asdict
from typing import Any

from rampcli.config.file_facts import CorpusFacts
from rampcli.estimate.model_size import model_size
from rampcli.planning.corpus_passes import corpus_passes, passes_of_phase
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.planning.stage_memory import stage_memory
from rampcli.report.couplings import coupled_stages
from rampcli.report.phases import stage_rates
from rampcli.report.plan_notes import all_notes, costs_of
from rampcli.settings.rl import is_rl
from rampcli.settings.trainer import TrainerConfig


def plan_json(resolved: Resolved) -> dict[str, Any]:
    """Returns `plan_figures` with two more keys.

    `retuning` is what `Retuning.to_json` returns for the batch of the run, or null, and so is
    `retuning` of each phase for its own batch. `notes` has messages on what a user may not expect.
    """
    figures, retunings = plan_figures(resolved), resolved.retunings
    found = {one.phase: one.to_json() for one in retunings}
    for row in figures.get("phases", ()):
        row["retuning"] = found.get(row["name"])
    return {**figures, "retuning": found.get(None), "notes": all_notes(resolved)}


def plan_figures(resolved: Resolved) -> dict[str, Any]:
    """Returns `TrainingPlan.to_json` with what follows from the settings and their files.

    Each stage has `memory_bytes`, the estimate of its fullest rank, the figures of
    `coupled_stages`, its `seconds`, and in `seconds_from` the `Basis` of its throughput, which is
    null without one. `seconds` of the run include restarts. Seconds that are unknown are null.

    `parameters` is the size of the model, of which `embedding_parameters` are embeddings.
    `gradient_reduction` has the value `chosen` for `trainer.accumulate_reduce`, and `memory_bytes`
    and `sent_bytes` (gradients that a rank sends per step) of `last` and `each`, in the stages that
    need most. It is null if they are the same.
    `compilation` has the value `chosen` for `trainer.compile`, and the estimates `run_s` (of the
    steps of the run), `compile_s` and `saved_s`; `run_s` and `saved_s` are null without an end. It
    is null where the plan never compiles.
    `corpora` has the training corpora whose files were read: their `name`, `samples`, `pairs` (null
    for other data) and `passes`, how often the run reads each sample (null without an end).

    In a run with phases, each phase has `gradient_reduction`, `compilation`, `first_lr` and
    `last_lr` (the learning rate of its first and last step, null without an end), and its
    `corpora`, with the `passes` of the run up to its end. The corpora of the run have `name`,
    `tokens`, `orders` in which their samples are read, `passes`, and `read_again_tokens`: tokens
    that were read before, on average if there are several orders.

    In reinforcement learning, each stage also has `pairs`: how its prompts and their generations
    are split. It is null for stages in `passed`. The tokens of phases are null, because responses
    vary in length.
    """
    plan = resolved.plan
    costs = [
        {
            "memory_bytes": stage_memory(resolved.of(stage), stage).peak_bytes,
            "seconds": plan.stage_s(stage),
            "seconds_from": plan.basis_of(stage),
        }
        for stage in plan.stages
    ]
    unknown = dict.fromkeys(costs[0])
    data = plan.to_json()
    for row, cost, coupled in zip(
        data["stages"],
        [*[unknown] * len(plan.passed), *costs],
        coupled_stages(resolved),
        strict=True,
    ):
        row |= {**cost, **coupled}
    data["seconds"] = plan.run_s()
    model = model_size(resolved.config)
    data["parameters"], data["embedding_parameters"] = model.parameters, model.embeddings
    for row, phase in zip(data.get("phases", ()), resolved.phases, strict=False):
        passes = passes_of_phase(resolved, phase)
        corpora = [_corpus(one, passes[one.name]) for one in phase.files.corpora]
        row |= {**_rates(phase), **_choices(phase), "corpora": corpora}
        if is_rl(phase.config):
            row |= dict.fromkeys(("first_token", "tokens"))
    if "phases" not in data:
        data |= _choices(resolved.phases[0])
    data["corpora"] = [
        _corpus(one.facts, one.passes)
        if "phases" not in data
        else {
            "name": one.facts.name,
            "tokens": one.tokens,
            "orders": len(one.orders),
            "passes": one.passes,
            "read_again_tokens": one.read_again_tokens,
        }
        for one in corpus_passes(resolved)
    ]
    if is_rl(resolved.config):
        batches = [None] * len(plan.passed) + [
            resolved.of(stage).pairs(stage) for stage in plan.stages
        ]
        for row, batch in zip(data["stages"], batches, strict=True):
            row["pairs"] = batch and {"pairs": batch.pairs, **asdict(batch)}
    return data


def _corpus(facts: CorpusFacts, passes: float | None) -> dict[str, Any]:
    return {
        "name": facts.name,
        "samples": facts.samples,
        "pairs": facts.pairs,
        "passes": passes,
    }


def _choices(phase: ResolvedPhase) -> dict[str, Any]:
    """Returns what the plan chose for a phase, and from what costs."""
    trainer = phase.config.trainer
    reduction = compilation = None
    if phase.plan.stages:
        reduction, compilation = (
            costs_of(TrainerConfig.accumulate_reduce, phase),
            costs_of(TrainerConfig.compile, phase),
        )
    return {
        "gradient_reduction": reduction and {"chosen": trainer.accumulate_reduce, **reduction},
        "compilation": compilation and {"chosen": trainer.compile, **compilation},
    }


def _rates(phase: ResolvedPhase) -> dict[str, float | None]:
    stages = phase.plan.extents
    (first, _), (_, last) = stage_rates(phase, stages[0]), stage_rates(phase, stages[-1])
    return {"first_lr": first, "last_lr": last}
