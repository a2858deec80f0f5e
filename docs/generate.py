"""Writes the pages that are made from the program: `make docs`. CI compares them with what is committed."""

import gc
import inspect
import io
import os
import shlex
import sys
import tempfile
from contextlib import chdir, redirect_stderr, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests" / "cli")]

from bad_inputs import BAD_INPUTS, BadInput  # noqa: E402

from rampcli import llm  # noqa: E402
from rampcli.batch.maxtext import WORDS  # noqa: E402
from rampcli.batch.spellings import SPELLINGS  # noqa: E402
from rampcli.cli.main import main as run_command  # noqa: E402
from rampcli.config.resolve import resolve  # noqa: E402
from rampcli.config.schema import Config  # noqa: E402
from rampcli.config.settings import FOREIGN, Setting, settings, shown  # noqa: E402
from rampcli.report.plots import plot_plan  # noqa: E402

LONGEST_LINE = 240
MADE = "<!-- Made by `make docs` from {source}; change it there. -->\n\n"
HEAD = "| key | takes | default | unit | meaning |\n|---|---|---|---|---|\n"
MAXTEXT_WORDS = {
    "per_device_batch_size": "`data.micro_batch_size`, and with `gradient_accumulation_steps` `model.global_batch_size`",
    "enable_rampup_batch_size": "`model.rampup_batch_size`, `rampup.semantics=maxtext`, `rampup.node_policy=fixed`",
    "per_device_batch_size_start": "the start in `model.rampup_batch_size`",
    "per_device_batch_size_increment": "the increment in `model.rampup_batch_size`",
    "global_rampup_samples": "the samples in `model.rampup_batch_size`",
}


def config_page() -> str:
    """Returns docs/reference/config.md: all settings."""
    sections: dict[str, list[Setting]] = {}
    for setting in settings().values():
        if setting.key not in FOREIGN:
            section, _, _ = setting.key.rpartition(".")
            sections.setdefault(section, []).append(setting)
    lines = [
        MADE.format(source="rampcli/config/schema.py"),
        "# Settings\n\n",
        "Set a setting with `KEY=VALUE` on the command line, or in Python: `recipe.trainer.max_samples = 200`.\n",
        "`rampcli explain KEY` prints its meaning, its value and where the value comes from.\n",
        "`rampcli pretrain --factory NAME --cfg` prints all settings of a recipe. The defaults below apply\n",
        "if neither `conf/` nor the recipe sets a value.\n\n",
        "`null` means that there is no value. Counts can be written as `50_000_000` or `50M` (K, M, B and T\n",
        "are decimal), up to 10^18.\n",
    ]
    for section, rows in sections.items():
        about = "" if not section else f"{_section_doc(section)}\n\n"
        lines.append(
            f"\n## {f'`{section}`' if section else 'The run'}\n\n{about}| key | takes | default | unit | meaning |\n|---|---|---|---|---|\n"
        )
        lines += [_row(setting) for setting in rows]
    lines.append(
        "\n## Other systems' words\n\nThese set the settings above. `config.yaml` names them in `set_by` only. Two\n"
    )
    lines.append("spellings of one number must have the same value.\n\n")
    lines.append("| spelling | sets |\n|---|---|\n")
    lines += [f"| `{word}` | `{key}` |\n" for word, key in SPELLINGS.items()]
    lines += [f"| `{word}` | {MAXTEXT_WORDS[word]} |\n" for word in WORDS]
    return "".join(lines)


def _section_doc(section: str) -> str:
    schema: Any = Config
    for name in section.split("."):
        schema = schema.__dataclass_fields__[name].type
    return inspect.cleandoc(str(schema.__doc__))


def _row(setting: Setting) -> str:
    takes = (
        ", ".join(f"`{choice}`" for choice in setting.choices)
        if setting.choices
        else setting.type_name().removeprefix("an ").removeprefix("a ")
    )
    takes = " ".join(part for part in (takes, setting.range_name()) if part) + (
        ", or `null`" if setting.optional else ""
    )
    return f"| `{setting.key}` | {takes} | `{shown(setting.default)}` | {setting.unit or ''} | {setting.doc} |\n"


def bad_input_page() -> str:
    """docs/reference/bad-input.md: what wrong input is answered with."""
    lines = [
        MADE.format(source="tests/cli/bad_inputs.py"),
        "# Bad input, and what it is answered with\n\n",
        f"The {len(BAD_INPUTS)} wrong inputs below are tests: each ends with exit code 2, one message for each thing that is wrong, and\n",
        "nothing written. A message says what is wrong, which place set it, and what to try.\n",
    ]
    return "".join([*lines, *map(section, BAD_INPUTS)])


def section(wrong: BadInput) -> str:
    """One wrong input: what is typed, the files that it reads, and what is answered."""
    lines = [f"\n### {wrong.title}\n\n"]
    for name, content in wrong.files.items():
        text = repr(content)[2:-1] if isinstance(content, bytes) else content
        lines.append(
            f"`{name}`{':' if text else ' is empty.'}\n\n{_block(_printable(text))}{chr(10) if text else ''}"
        )
    lines.append(
        _block(
            "\n".join(
                _printable(line)
                for line in (f"$ rampcli {shlex.join(wrong.words)}", *answer(wrong))
            )
        )
    )
    return "".join(lines)


def answer(wrong: BadInput) -> list[str]:
    """What the command prints, line by line, in a folder of its own."""
    said = io.StringIO()
    before = sys.argv
    sys.argv = ["rampcli", *wrong.words]
    os.environ["COLUMNS"] = "200"
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stderr(said):
        for name, content in wrong.files.items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with suppress(SystemExit):
            run_command()
    sys.argv = before
    gc.enable()  # a command switches it off for its short life
    return said.getvalue().splitlines()


def _printable(text: str) -> str:
    """The text with what cannot be seen written out, and its beginning where it is long."""
    shown = "".join(
        character if character.isprintable() or character == "\n" else repr(character)[1:-1]
        for character in text
    )
    return shown if len(shown) <= LONGEST_LINE else f"{shown[:LONGEST_LINE]}..."


def _block(text: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())


PAGES = {
    HERE / "reference" / "config.md": config_page,
    HERE / "reference" / "bad-input.md": bad_input_page,
}


def main() -> None:
    """Write the pages, and the picture of the ramp in NeMo's documentation."""
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
    plot_plan(
        resolve(llm.from_factory("gpt3_5b")).plan, HERE / "images" / "ramp.svg", title="gpt3_5b"
    )


if __name__ == "__main__":
    main()
