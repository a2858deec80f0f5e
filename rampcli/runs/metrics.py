"""The metrics of steps: each is declared once, and everything that shows metrics follows.

A metric is a column of metrics.jsonl. `METRICS` declares those that rampcli measures. A
`rampcli.train.observers.model_observer.ModelObserver` declares its own, and a run lists these in
columns.json, so that readers know them without its code. Readers of rows, charts of the page, tags
of trackers, figures of stages and docs/reference/run-directory.md follow from here.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from functools import partial
from typing import Any, Literal, get_args

from rampcli.errors import printable, shown
from rampcli.files.records import COUNT, POSITIVE, RATE, TIME
from rampcli.runs.event_kinds import NUMBER_OR_NULL

Summary = Literal["last", "mean", "max", "rate"]
OverRanks = Literal["sum", "norm"]
LAST_STEPS = 10
MOST_DECLARED = 400
"""Metrics that the observers of a run may declare. Readers take 500 columns in all."""
METRIC_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the page. Several metrics may share it.

    Attributes:
        id: name of the chart.
        title: what stands above it.
        section: heading that it stands below.
        unit: what stands beside the title; None for the unit of its first metric.
        log: whether it has a logarithmic axis if the reader asks for one.
        from_zero: whether the axis begins at 0.
        smooth: whether the reader may smooth it.
    """

    id: str
    title: str
    _: KW_ONLY
    section: str = "Model"
    unit: str | None = None
    log: bool = False
    from_zero: bool = False
    smooth: bool = False


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of metrics.jsonl.

    Attributes:
        name: name of the column.
        doc: what it says, in Markdown.
        unit: unit of its values. The page shows "s", "bytes" and "share" as such.
        group: first part of its tag in trackers; None for "rl" in reinforcement learning, else
            "train".
        chart: chart of the page that draws it.
        label: name of its curve there; None for its own name.
        summary: figure of a report for steps with a value: "last", the mean over the last 10;
            "mean" or "max" over all; "rate", the mean over their time. None for no figure.
        over_ranks: how the numbers that ranks measure become one: "sum", or "norm", the root of the
            sum, if each rank adds up the squares of its part.
        shape: shape of its values if readers rely on it (notation of `rampcli.files.records`). Only
            rampcli itself sets it and what follows.
        is_required: whether readers rely on each row having it.
        is_place: whether it says where a step is, so it is a horizontal axis and has no curve.
        tile: its name in the summary of the page, which shows its last value; None if it is not
            there. A metric with a tile or a column has a chart.
        column: its title in tables of stages, which show its figure; None if it is not there.
        is_goal: whether it measures what training improves. Pictures show it, and trackers that
            can, also over samples and tokens.
        replaces: metric in whose place it is shown in a run that has both.
    """

    name: str
    doc: str
    _: KW_ONLY
    unit: str = ""
    group: str | None = None
    chart: Chart | None = None
    label: str | None = None
    summary: Summary | None = None
    over_ranks: OverRanks = "sum"
    shape: Any = None
    is_required: bool = False
    is_place: bool = False
    tile: str | None = None
    column: str | None = None
    is_goal: bool = False
    replaces: str | None = None

    def tag(self, *, is_rl: bool) -> str:
        """Returns its tag in trackers."""
        return f"{self.group or ('rl' if is_rl else 'train')}/{self.name}"


_learning = partial(Chart, section="Learning", smooth=True)
_speed = partial(Chart, section="Speed", from_zero=True)
REWARD = _learning("reward", "Reward", unit="mean over responses")
SOLVED_SHARE = _learning("solved", "Solved", unit="share of responses")
LOSS = _learning("loss", "Loss", log=True)
Z_LOSS = _learning("z_loss", "Z-loss", unit="mean of log(Z)², unweighted", log=True)
LR = Chart("lr", "Learning rate", section="Learning", from_zero=True)
GRAD_NORM = _learning("grad_norm", "Gradient norm", unit="before clipping", log=True)
RESPONSE_TOKENS = _learning("response_tokens", "Response length")
ENTROPY = _learning("entropy", "Entropy")
KL = _learning("kl", "KL divergence")
THROUGHPUT = _speed("tokens_per_s", "Throughput", smooth=True)
MFU = _speed("mfu", "MFU", unit="share of the peak", smooth=True)
STEP_TIME = _speed("step_time_s", "Step time", unit="")
ROLLOUT = _speed("rollout", "Rollout and training", unit="time of a step")
PEAK_MEMORY = _speed("memory", "Peak memory", unit="of rank 0")
_batch = partial(Chart, section="Batch", from_zero=True)
NOISE_SCALE = _batch("noise_scale", "Noise scale", unit="samples per step", log=True)
CHARTS = (
    *(_batch("batch", "Batch size", unit="samples per step"), NOISE_SCALE),
    *(_batch("nodes", "Nodes"), REWARD, SOLVED_SHARE, LOSS, Z_LOSS),
    Chart("bits", "Bits per byte", section="Learning", unit="of validation text"),
    *(LR, GRAD_NORM, RESPONSE_TOKENS, ENTROPY, KL, THROUGHPUT, MFU, STEP_TIME),
    _speed("histogram", "Distribution of step times", unit="share of steps"),
    *(ROLLOUT, PEAK_MEMORY),
)
"""The charts of the page in order. panels.js draws those that have no metric."""

_place = partial(Metric, is_place=True)
_of_batch = partial(Metric, group="batch", is_required=True)
_of_training = partial(Metric, group="train")
_of_time = partial(Metric, group="throughput")
_of_policy = partial(Metric, group="rl")
_scale = partial(Metric, unit="sequences", chart=NOISE_SCALE, shape=NUMBER_OR_NULL)
STEP_METRICS = (
    _place("step", "optimiser steps taken, this one included", shape=COUNT, is_required=True),
    _place("time", "when the step ended, in seconds since 1970", unit="s", shape=TIME),
    _of_batch("stage", "the stage, from 0", shape=COUNT),
    _place(
        "consumed_samples", "samples consumed, this step included", shape=COUNT, is_required=True
    ),
    _place("consumed_tokens", "tokens consumed, this step included"),
    _of_batch("global_batch_size", "samples of this step", shape=COUNT),
    _of_batch("accumulate_grad_batches", "micro batches per rank in this step", shape=POSITIVE),
    _of_batch("world_size", "processes", shape=POSITIVE),
    _of_training(
        "loss",
        "mean loss over the tokens of the global batch before the step; `null` if it was not"
        " finite",
        unit="nats per token",
        chart=LOSS,
        label="training",
        summary="last",
        shape=NUMBER_OR_NULL,
        is_required=True,
        tile="loss",
        column="loss",
        is_goal=True,
    ),
    Metric(
        "z_loss",
        "with `loss.z_weight`: mean of log(Z)² over the same tokens, without the weight; `loss`"
        " does not contain it; `null` if it was not finite",
        chart=Z_LOSS,
        label="z-loss",
        shape=NUMBER_OR_NULL,
    ),
    _of_training(
        "grad_norm",
        "norm of the gradient before clipping; `null` if it was not finite",
        chart=GRAD_NORM,
        label="gradient norm",
    ),
    _of_training("lr", "learning rate of this step", chart=LR, label="learning rate"),
    Metric("beta2", "value of this step; only with `schedule.beta2_coupling`"),
    Metric("weight_decay", "value of this step; only with `schedule.weight_decay_coupling`"),
    _of_time(
        "step_time_s",
        "time of the step, including the wait for its samples",
        unit="s",
        chart=STEP_TIME,
        label="step",
        shape=RATE,
        is_required=True,
    ),
    _of_time(
        "data_time_s",
        "time that rank 0 waited for samples, which are prefetched during earlier steps",
        unit="s",
        chart=STEP_TIME,
        label="wait for data",
    ),
    _of_time(
        "samples_per_s",
        "throughput of this step, over all processes",
        unit="samples/s",
        shape=RATE,
        is_required=True,
    ),
    _of_time(
        "tokens_per_s",
        "throughput of this step, over all processes",
        unit="tokens/s",
        chart=THROUGHPUT,
        label="tokens/s",
        summary="rate",
        shape=RATE,
        is_required=True,
        tile="tokens/s",
        column="tokens/s",
    ),
    _of_time(
        "mfu",
        "share of the peak set by `trainer.peak_tflops`, counting all tokens in attention; `null`"
        " if it is not set. See [Time and throughput](../explanation/time-and-throughput.md)",
        unit="share",
        chart=MFU,
        label="full attention",
        summary="rate",
        shape=NUMBER_OR_NULL,
        tile="MFU",
        column="MFU",
    ),
    _of_time(
        "mfu_causal",
        "the same, counting only the tokens before each token in attention",
        unit="share",
        chart=MFU,
        label="causal attention",
        summary="rate",
        column="causal",
    ),
    Metric(
        "peak_memory_bytes",
        "most memory that rank 0 has held so far: what torch has reserved on its GPU, or the"
        " resident memory of its process on the CPU; `null` if the system does not say",
        unit="bytes",
        group="memory",
        chart=PEAK_MEMORY,
        label="memory",
        tile="peak memory",
    ),
    Metric(
        "order_hash",
        "with `data.audit_order=true`: a hash of the samples that the ranks have read, chained"
        " over all steps; else `null`",
    ),
)
"""Those of every step."""
NOISE_METRICS = (
    Metric(
        "grad_sq",
        "estimated squared norm of the true gradient; a single step may say a negative number",
    ),
    Metric(
        "grad_var",
        "estimated variance of the gradient of one sequence, summed over all weights",
    ),
    _scale(
        "noise_scale",
        "noise scale, averaged over the last measured steps; `null` if it is unknown",
    ),
    _scale("noise_scale_low", "lower end of its 95% interval; `null` if it is unknown"),
    _scale("noise_scale_high", "upper end of its 95% interval; `null` if it is unknown"),
)
"""Those of steps that measure the noise of the gradient."""
POLICY_METRICS = (
    _of_policy("pairs", "pairs of prompt and response in this step", shape=POSITIVE),
    _of_policy("generations_per_prompt", "responses to each prompt"),
    _of_policy(
        "reward",
        "mean of the rewards; `null` if there is no reward",
        chart=REWARD,
        label="training",
        summary="last",
        shape=NUMBER_OR_NULL,
        tile="reward",
        column="reward",
        is_goal=True,
        replaces="loss",
    ),
    _of_policy("reward_sd", "standard deviation of the rewards; `null` if there is no reward"),
    _of_policy("reward_best", "largest of the rewards; `null` if there is no reward"),
    _of_policy(
        "solved",
        "share of the rewards that are 1 or more",
        unit="share",
        chart=SOLVED_SHARE,
        label="training",
        summary="last",
        shape=NUMBER_OR_NULL,
        tile="solved",
        column="solved",
    ),
    _of_policy("unscored", "responses without a reward, because the reward function failed"),
    _of_policy(
        "flat_groups",
        "share of the prompts whose responses all have the same reward; they teach nothing",
        unit="share",
    ),
    _of_policy(
        "response_tokens",
        "mean length of a response, its end included",
        unit="tokens",
        chart=RESPONSE_TOKENS,
        label="tokens",
    ),
    _of_policy(
        "cut_responses",
        "share of the responses that reached `rl.max_response_tokens` without an end",
        unit="share",
    ),
    _of_policy(
        "ratio",
        "mean ratio of a token's probability now to its probability when it was drawn; of a"
        " response's with `rl.ratio=sequence`",
    ),
    _of_policy(
        "clipped",
        "share of the ratios that the clip of the loss keeps from having a gradient",
        unit="share",
    ),
    _of_policy(
        "reference_kl",
        "estimated KL divergence from the starting weights; 0 with `rl.kl_weight=0`",
        unit="nats per token",
        chart=KL,
        label="from the start",
    ),
    _of_policy(
        "old_kl",
        "estimated KL divergence of the weights in training from those that generated. In the"
        " first update it is rounding alone",
        unit="nats per token",
        chart=KL,
        label="from the rollout",
    ),
    _of_policy(
        "entropy",
        "mean entropy of the distributions that tokens were drawn from",
        unit="nats per token",
        chart=ENTROPY,
    ),
    _of_policy("rollout_ranks", "processes that only generate: `rl.rollout_ranks`", shape=COUNT),
    _of_policy(
        "rollout_s",
        "time that a process has spent on generating and scoring; with `rollout_ranks` above 0,"
        " the mean over these",
        unit="s",
        chart=ROLLOUT,
        label="rollout",
        shape=RATE,
    ),
    _of_policy(
        "training_s",
        "time of the step that rank 0 has spent on other things than generating or waiting for"
        " responses",
        unit="s",
        chart=ROLLOUT,
        label="training",
        shape=RATE,
    ),
    _of_policy(
        "predicted_s",
        "time of the step that follows from the two above; `step_time_s` without overlap",
        unit="s",
        shape=RATE,
    ),
    _of_policy(
        "rollout_tokens_per_s", "response tokens per second of `rollout_s`", unit="tokens/s"
    ),
    _of_policy(
        "training_tokens_per_s",
        "tokens of prompts and responses per second of `training_s`",
        unit="tokens/s",
    ),
)
"""Those that reinforcement learning adds."""
METRICS = {one.name: one for one in (*STEP_METRICS, *NOISE_METRICS, *POLICY_METRICS)}
"""All metrics that rampcli measures, by name.

To add a metric: its declaration beside `rampcli/runs/metrics.py:STEP_METRICS`, and its value in
`rampcli/train/observers/journal.py:Journal` or `rampcli/rl/metrics.py`; then `make docs`.
"""
PLACE_COLUMNS = tuple(one.name for one in METRICS.values() if one.is_place)
"""Columns that say where a step is."""
CHARTED = tuple(one.name for one in METRICS.values() if one.chart is not None)
"""Columns that have a chart."""
STAGE_METRICS = tuple(one for one in METRICS.values() if one.column)
"""Metrics in tables of stages. Reports show figures of others for the whole run."""
GOALS = tuple(one for one in METRICS.values() if one.is_goal)
"""What training improves."""
METRICS_ROW = {
    one.name if one.is_required else f"{one.name}?": one.shape
    for one in METRICS.values()
    if one.shape is not None
}
"""Shape of the columns that readers rely on. Rows may hold more."""

_TEXT = (str, None)
_CHART = {
    **dict.fromkeys(("id", "title", "section"), str),
    "unit": _TEXT,
    **dict.fromkeys(("log", "from_zero", "smooth"), bool),
}
_METRIC = {
    **dict.fromkeys(("name", "doc", "unit"), str),
    **dict.fromkeys(("group", "label", "summary"), _TEXT),
    "chart": (_CHART, None),
}
COLUMNS_FILE = {"metrics": [_METRIC]}
"""Shape of columns.json, which lists the metrics that observers have declared."""


def check_declared(metrics: Iterable[Metric]) -> None:
    """Checks metrics that observers declare.

    Raises:
        ValueError: a run cannot have them.
    """
    for _, reason in _with_reasons(metrics):
        if reason is not None:
            raise ValueError(reason)


def fitting(metrics: Iterable[Metric]) -> tuple[Metric, ...]:
    """Returns metrics without those that a run cannot have beside the ones before them.

    An earlier version of rampcli may have had no metric or chart of that name.
    """
    return tuple(one for one, reason in _with_reasons(metrics) if reason is None)


def _with_reasons(metrics: Iterable[Metric]) -> Iterator[tuple[Metric, str | None]]:
    """Yields metrics, each with the reason why a run cannot have it, or None."""
    names, charts = {*METRICS}, {chart.id: chart for chart in CHARTS}
    for one in metrics:
        reason, chart = None, one.chart
        if not METRIC_NAME.fullmatch(one.name) or not METRIC_NAME.fullmatch(one.group or "train"):
            reason = f"{shown(one.tag(is_rl=False))} is not a name such as layers/norm_1"
        elif one.name in names:
            reason = f"there is another metric {one.name}"
        elif chart is not None and charts.setdefault(chart.id, chart) != chart:
            reason = f"{one.name}: there is another chart {shown(chart.id)}"
        elif one.summary not in (None, *get_args(Summary)):
            reason = f"{one.name}: summary={shown(one.summary)} is not one of {get_args(Summary)}"
        elif one.over_ranks not in get_args(OverRanks):
            reason = f"{one.name}: over_ranks={shown(one.over_ranks)} is neither sum nor norm"
        elif len(names) == len(METRICS) + MOST_DECLARED:
            reason = f"there are more than {MOST_DECLARED} metrics"
        if reason is None:
            names.add(one.name)
        yield one, reason


def columns_json(metrics: Iterable[Metric]) -> dict[str, Any]:
    """Returns the contents of columns.json."""
    return {"metrics": [_taken(asdict(one), _METRIC) for one in metrics]}


def from_json(content: Mapping[str, Any]) -> tuple[Metric, ...]:
    """Returns the metrics in columns.json, whose shape was checked."""
    found = []
    for one in content["metrics"]:
        chart = one["chart"] and Chart(**_taken(one["chart"], _CHART))
        found.append(Metric(**_taken(one, _METRIC) | {"chart": chart}))
    return fitting(found)


def _taken(fields: Mapping[str, Any], shape: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a shape, with texts that cannot control a terminal."""
    found = ((name, fields[name]) for name in shape)
    return {name: printable(one) if isinstance(one, str) else one for name, one in found}


def measured_of(metrics: Iterable[Metric], measured: Collection[str]) -> list[Metric]:
    """Returns the metrics that a run has, without those that others replace, in order of charts.

    Args:
        metrics: metrics with a chart.
        measured: columns of the run, which need not have those of each row yet.
    """
    found = [one for one in metrics if one.is_required or one.name in measured]
    replaced = {one.replaces for one in found}
    charts = [chart.id for chart in CHARTS]
    return sorted(
        (one for one in found if one.name not in replaced),
        key=lambda one: charts.index(one.chart.id) if one.chart else -1,
    )


def tiles_of(measured: Collection[str]) -> list[dict[str, Any]]:
    """Returns the metrics of a run in the summary of the page, as data for JSON."""
    return [
        {
            "name": one.tile,
            "column": one.name,
            "show": one.unit,
            "section": one.chart and one.chart.section,
        }
        for one in measured_of((one for one in METRICS.values() if one.tile), measured)
    ]


def charts_of(metrics: Iterable[Metric]) -> list[dict[str, Any]]:
    """Returns the charts of the page for some metrics beside those of rampcli, as data for JSON.

    Each has the labels of its curves by column, as `columns`, and the unit of these, as `show`.
    """
    drawn: dict[Chart, list[Metric]] = {chart: [] for chart in CHARTS}
    for one in (*METRICS.values(), *metrics):
        if one.chart is not None:
            drawn.setdefault(one.chart, []).append(one)
    found = []
    for chart, of_chart in drawn.items():
        unit = of_chart[0].unit if of_chart else ""
        found.append(
            asdict(chart)
            | {
                "unit": unit if chart.unit is None else chart.unit,
                "show": unit,
                "columns": {one.name: one.label or one.name for one in of_chart},
            }
        )
    return found
