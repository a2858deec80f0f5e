"""The scripts of the jobs. Whatever a template prints comes out as quoted words of bash, also from a template of a user's own."""

import math
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateRuntimeError, TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from rampcli.batch.training_plan import StagePlan
from rampcli.config.choices import Accelerator
from rampcli.config.resolve import Resolved
from rampcli.errors import UsageError
from rampcli.run_directory import RunDirectory

FOLDER = "slurm"
TEMPLATE_KEY = "launch.slurm.template"
SIGNAL_MARGIN_S = 60  # Slurm's signals come up to a minute late (sbatch(1), --signal)
_UNUSUAL = re.compile(r"[^\w@%+=:,./ -]")
_BUNDLED = Path(__file__).with_name("stage.sbatch.j2")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobScript:
    """What one job runs.

    Attributes:
        stages: that its processes train.
        num_nodes: that it asks for.
        job_name: of letters, digits, dots, dashes and underscores.
        path: where the script belongs; nothing is written yet.
        text: of the script.
    """

    stages: tuple[StagePlan, ...]
    num_nodes: int
    job_name: str
    path: Path
    text: str


def render(resolved: Resolved, directory: RunDirectory, *, consumed_samples: int = 0) -> list[JobScript]:
    """The scripts of a run's jobs, in order.

    Args:
        resolved: what to train, and its plan.
        directory: of the run.
        consumed_samples: where the run stands; what was trained by then needs no job.

    Raises:
        UsageError: the template is not there or cannot be rendered, or Slurm could not write into the run directory.
    """
    _check_folder(directory)
    template = _read_template(resolved.config.launch.slurm.template)
    scripts = []
    for group in resolved.plan.stages_by_processes():
        if stages := tuple(stage for stage in group if stage.end_sample is None or stage.end_sample > consumed_samples):
            first = stages[0]
            facts = _facts(resolved, directory, stages)
            path = directory.path / FOLDER / f"stage_{first.stage}.sbatch"
            text = _fill(template, facts)
            scripts.append(JobScript(stages=stages, num_nodes=first.num_nodes, job_name=facts["job_name"], path=path, text=text))
    return scripts


def _facts(resolved: Resolved, directory: RunDirectory, stages: Sequence[StagePlan]) -> dict[str, Any]:
    """What a template may print."""
    trainer, launch = resolved.config.trainer, resolved.config.launch
    first = stages[0]
    gpus_per_node = 0 if trainer.accelerator is Accelerator.cpu else launch.slurm.gpus_per_node
    return {
        "job_name": f"{re.sub(r'[^A-Za-z0-9._-]+', '-', resolved.config.name)}.stage{first.stage}",
        "stages": [stage.stage for stage in stages],
        "num_nodes": first.num_nodes,
        "devices": trainer.devices,
        "gpus_per_node": trainer.devices if gpus_per_node is None else gpus_per_node,
        "signal_s": math.ceil(launch.grace_s) + SIGNAL_MARGIN_S,
        "log": f"logs/stage_{first.stage}.%j.log",
        "folder": str(Path.cwd()),
        "python": launch.slurm.python or sys.executable,
        "run_dir": str(directory.path.resolve()),
        "slurm": asdict(launch.slurm),
    }


def _check_folder(directory: RunDirectory) -> None:
    path = str(directory.path.resolve())
    if not {"%", "\\"}.isdisjoint(path):
        raise UsageError(
            f"Slurm cannot write logs into {path}: it has uses of its own for % and \\ in a path",
            keys=("run_dir",),
            remedy="another run_dir=",
        )


def _read_template(own: str | None) -> str:
    try:
        return Path(own or _BUNDLED).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or no path
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read the template {own}: {reason}", keys=(TEMPLATE_KEY,), remedy=f"{TEMPLATE_KEY}=null") from error


def _fill(template: str, facts: dict[str, Any]) -> str:
    environment = SandboxedEnvironment(
        undefined=StrictUndefined, finalize=_quote, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["directive"] = _quote_directive
    try:
        return environment.from_string(template).render(facts)
    except Exception as error:  # an expression of the template may fail in any way that Python knows
        raise UsageError(
            f"line {_line_of(error)} of the template {facts['slurm']['template']}: {error}",
            keys=(TEMPLATE_KEY,),
            remedy=f"{TEMPLATE_KEY}=null, for the bundled template; it knows {', '.join(facts)}",
        ) from error


def _line_of(error: Exception) -> int | None:
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return lines[-1] if lines else None


class _Quoted(str):
    """Text that is quoted already."""

    __slots__ = ()


def _quote(value: Any) -> str:
    """A printed value as one word of bash, a list as several.

    All that could mean something to bash is written in octal, so that a value in the wrong place, as inside of a template's own quotes or
    in a comment, may become another value but never a command.
    """
    if isinstance(value, _Quoted):
        return value
    if isinstance(value, list | tuple):
        return " ".join(map(_quote, value))
    if isinstance(value, str | int | float):
        text = str(value)
        return f"$'{_UNUSUAL.sub(_octal, text)}'" if _UNUSUAL.search(text) else shlex.quote(text)
    raise TemplateRuntimeError(f"{value} is no value to print")


def _octal(match: re.Match[str]) -> str:
    return "".join(f"\\{byte:03o}" for byte in match[0].encode(errors="surrogateescape"))


def _quote_directive(value: object) -> _Quoted:
    """A value as sbatch reads it in a `#SBATCH` line: a backslash keeps its meaning in quotes of either kind. Bash reads it alike."""
    text = str(value)
    if not text.isprintable():
        raise TemplateRuntimeError(f"{text!r} cannot stand on one line")
    if re.fullmatch(r"[\w@%+=:,./*-]+", text, re.ASCII):
        return _Quoted(text)
    return _Quoted('"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"')
