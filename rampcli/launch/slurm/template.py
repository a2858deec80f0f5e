"""Renders job templates. Every printed value becomes quoted words of bash.

This also holds for a user's own template. Jinja's sandbox keeps such a template from reading files
and running code, but not from looping for ever. So it is rendered in a separate process, with
limits on time, memory and output: `python -m rampcli.launch.slurm.template`.
"""

import json
import re
import resource
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import StrictUndefined, TemplateRuntimeError, TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from rampcli.errors import printable
from rampcli.interpreter import python_command, safe_environment

CPU_S = 5
WALL_S = 60.0
"""Leaves time for Python to start from a slow disk. The template itself is limited by `CPU_S`: it
cannot sleep."""
MEMORY_GIB = 1
OUTPUT_MIB = 4
"""Limit for all scripts of a chain. Slurm does not accept larger scripts (max_script_size)."""
_UNUSUAL = re.compile(r"[^\w@%+=:,./ -]")


class TemplateError(Exception):
    """A template cannot be rendered.

    Attributes:
        line: line of the template, or None if it is unknown.
        reason: what is wrong there.
    """

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def render(template: str, facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the rendered texts of a template, one for each mapping of names to values.

    Raises:
        TemplateError: the template is invalid, an expression fails, or the texts exceed
            `OUTPUT_MIB`.
    """
    environment = SandboxedEnvironment(
        undefined=StrictUndefined,
        finalize=_quote,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["directive"] = _quote_directive
    texts, remaining = list[str](), OUTPUT_MIB * 2**20
    try:
        compiled = environment.from_string(template)
        for names in facts:
            pieces = []
            for piece in compiled.generate(names):
                remaining -= len(piece)
                if remaining < 0:
                    raise TemplateRuntimeError(f"it prints more than {OUTPUT_MIB} MiB")
                pieces.append(piece)
            texts.append("".join(pieces))
    except MemoryError as error:
        raise TemplateError(
            _line_of(error), f"it uses more than {MEMORY_GIB} GiB of memory"
        ) from error
    except Exception as error:  # an expression in the template may raise anything
        raise TemplateError(_line_of(error), str(error)) from error
    return texts


def render_within_limits(template: str, facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Renders a template as `render` does, in a separate process with limits.

    Raises:
        TemplateError: as `render`, or the template exceeds its time or memory.
    """
    request = json.dumps({"template": template, "facts": facts, "cpu_s": CPU_S})
    try:
        done = subprocess.run(
            python_command(__name__),
            env=safe_environment(),
            input=request.encode(),
            capture_output=True,
            timeout=WALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TemplateError(None, f"it was not rendered within {WALL_S:g} s") from error
    if done.returncode == -signal.SIGKILL:
        raise TemplateError(None, _too_long(CPU_S))
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise TemplateError(None, f"rendering failed with exit code {done.returncode}: {last}")
    answer = json.loads(done.stdout)
    if "reason" in answer:
        raise TemplateError(answer["line"], answer["reason"])
    return [str(text) for text in answer["texts"]]


def main() -> None:
    """Renders the template on standard input within limits, and prints the result as JSON."""
    request = json.load(sys.stdin)
    _limit(request["cpu_s"])
    try:
        answer: dict[str, Any] = {"texts": render(request["template"], request["facts"])}
    except TemplateError as error:
        answer = {"line": error.line, "reason": printable(error.reason)}
    json.dump(answer, sys.stdout)


def _limit(cpu_s: int) -> None:
    """Limits the time and memory of this process.

    When the time is over, the current line of the template raises an error. If a single operation
    runs for another second, the process is killed.
    """

    def stop(*_: object) -> NoReturn:
        raise TimeoutError(_too_long(cpu_s))

    signal.signal(signal.SIGXCPU, stop)
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime) + cpu_s
    for limit, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, until, until + 1),
        (resource.RLIMIT_AS, MEMORY_GIB * 2**30, MEMORY_GIB * 2**30),
    ):
        most = resource.getrlimit(limit)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(limit, (soft, hard))


def _too_long(cpu_s: int) -> str:
    return f"it uses more than {cpu_s} s of processor time"


def _line_of(error: Exception) -> int | None:
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == "<template>"
    ]
    return lines[-1] if lines else None


class _Quoted(str):
    """Text that is already quoted."""

    __slots__ = ()


def _quote(value: Any) -> str:
    """Returns a value as one quoted word of bash, or a list as several words.

    Every character that may be special to bash is written in octal. So a value in the wrong place,
    such as inside a template's own quotes or in a comment, may change but never becomes a command.
    """
    if isinstance(value, _Quoted):
        return value
    if isinstance(value, list | tuple):
        return " ".join(map(_quote, value))
    if isinstance(value, str | int | float):
        text = str(value)
        return f"$'{_UNUSUAL.sub(_octal, text)}'" if _UNUSUAL.search(text) else shlex.quote(text)
    raise TemplateRuntimeError(f"{value} cannot be printed")


def _octal(match: re.Match[str]) -> str:
    return "".join(f"\\{byte:03o}" for byte in match[0].encode(errors="surrogateescape"))


def _quote_directive(value: object) -> _Quoted:
    """Returns a value quoted for a `#SBATCH` line, so that sbatch and bash read it alike.

    sbatch interprets backslashes in both kinds of quotes.
    """
    text = str(value)
    if not text.isprintable():
        raise TemplateRuntimeError(f"{text!r} does not fit on one line")
    if re.fullmatch(r"[\w@%+=:,./*-]+", text, re.ASCII):
        return _Quoted(text)
    return _Quoted('"' + re.sub(r'([\\"$`])', r"\\\1", text) + '"')


if __name__ == "__main__":
    main()
