"""Checks settings on their own and against each other, before anything is planned."""

import re
from collections.abc import Callable
from typing import Any

from rampcli.batch.division import divisors
from rampcli.config.architectures import check_huggingface_type
from rampcli.config.corpora import check_corpora, check_document_mask, check_split
from rampcli.config.launch_checks import LAUNCH_CHECKS
from rampcli.config.rl_checks import RL_CHECKS, check_reward
from rampcli.config.schema import Config
from rampcli.config.settings import Setting, leaves, settings, shown
from rampcli.config.splits import SPLIT_CHECKS
from rampcli.config.watch_checks import WATCH_CHECKS
from rampcli.config.widths import head_size_of
from rampcli.errors import Report, UsageError
from rampcli.schedule.learning_rate import DECAY_STYLES, OF_EXTENSION

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def check_ranges(config: Config) -> None:
    """Checks that every number is in its range.

    Raises:
        UsageError: all numbers out of range, together.
    """
    report = Report()
    for key, value in leaves(config):
        if key in settings():  # extensions check their own
            with report.noting():
                check_range(settings()[key], value)
    report.close()


def check_range(setting: Setting, value: Any) -> None:
    """Checks that a value, if it is a number, is in the range of its setting.

    Raises:
        UsageError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    key, text = setting.key, f"{setting.key}={shown(value)}"
    if setting.at_least is not None and value < setting.at_least:
        raise UsageError(
            f"{text} is below {setting.at_least:g}",
            keys=(key,),
            remedy=f"{key}={setting.at_least:g} or more",
        )
    if setting.above is not None and value <= setting.above:
        raise UsageError(
            f"{text} is not above {setting.above:g}", keys=(key,), remedy="a positive number"
        )
    if setting.below is not None and value >= setting.below:
        raise UsageError(
            f"{text} is not below {setting.below:g}",
            keys=(key,),
            remedy=f"{key}={shown(setting.default)}",
        )
    if setting.at_most is not None and value > setting.at_most:
        most = shown(setting.at_most)
        raise UsageError(f"{text} is above {most}", keys=(key,), remedy=f"{key}={most} or less")


def check_name(config: Config) -> None:
    """Checks that the name can name a folder and that the run directory is a path."""
    name = config.name
    if (
        not name
        or name in (".", "..")
        or "/" in name
        or not name.isprintable()
        or len(name.encode(errors="replace")) > 200
    ):
        raise UsageError(
            f"name={name[:100]!r} cannot name a folder",
            keys=("name",),
            remedy="letters, digits, - and _",
        )
    if config.run_dir is not None and (not config.run_dir or "\0" in config.run_dir):
        raise UsageError(
            f"run_dir={config.run_dir!r} is not a path",
            keys=("run_dir",),
            remedy="run_dir=runs/NAME",
        )


def check_paths(config: Config) -> None:
    """Checks that paths are not URLs such as `gs://bucket/wiki`.

    Raises:
        UsageError: all URLs together.
    """
    data, report = config.data, Report()
    paths = {
        "data.path": [data.path],
        "data.blend": data.blend,
        "data.validation_path": [data.validation_path],
        "data.validation": list((data.validation or {}).values()),
        "data.tokenizer": [data.tokenizer],
        "model.init_from": [config.model.init_from],
        "run_dir": [config.run_dir],
    }
    for key, values in paths.items():
        for path in values or ():
            with report.noting():
                _check_path(key, path)
    report.close()


def _check_path(key: str, path: str | None) -> None:
    if path is not None and (scheme := _SCHEME.match(path)):
        folder = f"/mnt/{path[scheme.end() :].lstrip('/')}"
        raise UsageError(
            f"{key}: {path} is a URL, but only files and folders can be used",
            keys=(key,),
            remedy="a mounted folder, or a copy: "
            + (folder if key in ("data.blend", "data.validation") else f"{key}={folder}"),
        )


def check_heads(config: Config) -> None:
    """Checks that heads divide the width and groups the heads, and RoPE's head size is even."""
    model = config.model
    groups = model.num_query_groups or model.num_attention_heads
    if model.head_size is None and model.hidden_size % model.num_attention_heads:
        heads = divisors(model.hidden_size, most=model.num_attention_heads)[-1]
        raise UsageError(
            f"model.hidden_size={model.hidden_size} does not divide into"
            f" model.num_attention_heads={model.num_attention_heads}",
            keys=("model.hidden_size", "model.num_attention_heads"),
            remedy=f"model.num_attention_heads={heads}, or model.head_size=64",
        )
    if model.num_attention_heads % groups:
        raise UsageError(
            f"model.num_attention_heads={model.num_attention_heads} does not divide into"
            f" model.num_query_groups={groups}",
            keys=("model.num_attention_heads", "model.num_query_groups"),
            remedy=f"model.num_query_groups={divisors(model.num_attention_heads, most=groups)[-1]}",
        )
    head_size = head_size_of(model)
    if model.position_embedding == "rope" and head_size % 2:
        raise UsageError(
            f"model.hidden_size={model.hidden_size} over"
            f" model.num_attention_heads={model.num_attention_heads} gives heads of {head_size};"
            " rotary positions need an even size"
            if model.head_size is None
            else f"model.head_size={head_size}: rotary positions need an even size",
            keys=("model.hidden_size", "model.num_attention_heads")
            if model.head_size is None
            else ("model.head_size",),
            remedy="model.position_embedding=learned, or an even head size",
        )


def check_rotary(config: Config) -> None:
    """Checks that RoPE scaling has RoPE to scale, and a band of frequencies to blend."""
    model = config.model
    if model.rotary_scale_factor is None:
        return
    if model.position_embedding != "rope":
        raise UsageError(
            f"model.rotary_scale_factor={model.rotary_scale_factor:g} does not apply to"
            f" model.position_embedding={model.position_embedding}",
            keys=("model.rotary_scale_factor", "model.position_embedding"),
            remedy="model.rotary_scale_factor=null",
        )
    if model.rotary_low_freq_factor >= model.rotary_high_freq_factor:
        raise UsageError(
            f"model.rotary_low_freq_factor={model.rotary_low_freq_factor:g} is not below"
            f" model.rotary_high_freq_factor={model.rotary_high_freq_factor:g}",
            keys=("model.rotary_low_freq_factor", "model.rotary_high_freq_factor"),
            remedy="model.rotary_low_freq_factor=1.0 model.rotary_high_freq_factor=4.0",
        )


def check_warmup(config: Config) -> None:
    """Checks that the warm-up is given once."""
    optim = config.optim
    if optim.warmup_samples is not None and optim.warmup_steps is not None:
        raise UsageError(
            f"the warm-up is given twice: optim.warmup_samples={optim.warmup_samples} and"
            f" optim.warmup_steps={optim.warmup_steps}",
            keys=("optim.warmup_samples", "optim.warmup_steps"),
            remedy="null for one of them",
        )


def check_schedule(config: Config) -> None:
    """Checks that the learning-rate schedule has the settings that it needs, and no others."""
    optim, schedule = config.optim, config.schedule
    if optim.min_lr > optim.lr:
        raise UsageError(
            f"optim.min_lr={optim.min_lr} is above optim.lr={optim.lr}",
            keys=("optim.min_lr", "optim.lr"),
            remedy=f"optim.min_lr={optim.lr}",
        )
    style = DECAY_STYLES.get(schedule.decay_style, OF_EXTENSION)
    if style.needs_warmup and not (optim.warmup_samples or optim.warmup_steps):
        raise UsageError(
            f"schedule.decay_style={schedule.decay_style} needs a warm-up to decay from",
            keys=("schedule.decay_style", "optim.warmup_samples", "optim.warmup_steps"),
            remedy="optim.warmup_samples=10000",
        )
    if schedule.wsd_decay_samples is not None and not style.takes_decay_samples:
        raise UsageError(
            f"schedule.wsd_decay_samples={schedule.wsd_decay_samples} does not apply to"
            f" schedule.decay_style={schedule.decay_style}",
            keys=("schedule.wsd_decay_samples", "schedule.decay_style"),
            remedy="schedule.decay_style=wsd, or schedule.wsd_decay_samples=null",
        )


CHECKS: tuple[Callable[[Config], Any], ...] = (
    check_name,
    check_paths,
    check_heads,
    check_rotary,
    check_huggingface_type,
    check_warmup,
    check_schedule,
    check_corpora,
    check_document_mask,
    check_split,
    *SPLIT_CHECKS,
    *LAUNCH_CHECKS,
    *RL_CHECKS,
    *WATCH_CHECKS,
)
"""Every check of settings against each other. They rely on `check_ranges`."""
CHECKS_OF_WORDS = (*CHECKS, check_reward)
"""All checks of what a user sets now. Those of `CHECKS` also hold for the snapshot of a run."""
