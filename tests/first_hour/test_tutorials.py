"""Each tutorial, followed from top to bottom in an empty folder.

The output must be what the page shows, except for figures, which depend on the machine.
"""

import json
import re
import shlex

import nbformat
import pytest

from doc_examples import ROOT, differs, examples_of

TUTORIALS = ROOT / "docs" / "tutorials"
FIGURE = re.compile(r"\d+(?:[.,:]\d+)*(?:e[+-]\d+)?")
CELL = re.compile(r"```python\n((?:.*\n)*?)```\n((?:    .*\n|\n(?=    ))*)")
NO_BF16 = "lists neither avx512_bf16 nor amx_bf16"
"""Part of a warning of machines on which a recipe trains in fp32."""
FEW = "trainer.max_val_samples=8"
SHORTER = ["trainer.max_samples=16", "model.rampup_batch_size=null", "trainer.num_nodes=1", FEW]
"""What is added to the first run, which takes a minute otherwise."""
SHORT_PHASES = {
    "name=three": [
        FEW,
        *(f"phases.{name}.until={k}K" for name, k in (("short", 2), ("main", 6), ("decay", 8))),
    ],
    "name=one": [FEW, "trainer.max_tokens=8K", "schedule.wsd_decay_samples=12"],
}
"""What is added to the runs of the tutorial on phases, by their last words."""
EXECUTE = """
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config
notebook = nbformat.read("notebook.ipynb", as_version=4)
config = Config({"KernelManager": {"transport": "ipc"}})
NotebookClient(notebook, config=config, kernel_name="python3", timeout=300).execute()
nbformat.write(notebook, "notebook.ipynb")
"""
"""The kernel is reached by sockets in files: another program can take a port that it has chosen."""


def without_figures(lines):
    """Returns lines that can be compared between machines: without figures, bars and widths."""
    return [" ".join(FIGURE.sub("0", line.replace("█", "")).split()) for line in lines]


def difference(shown, printed, *, in_one_line=False):
    """Returns how the output differs from the lines shown, apart from figures, or None.

    `ls` and `head` print other lines than a page, which has no room for the longest.
    """
    printed = [line for line in printed if NO_BF16 not in line]
    if in_one_line and shown:
        shown, printed = [" ".join(shown)], [" ".join(printed)]
    return differs(without_figures(shown), without_figures(printed))


@pytest.mark.parametrize("name", ["first-run", "own-text", "phases", "two-machines"])
def test_a_tutorial_can_be_followed_from_an_empty_folder(newcomer, name):
    for example in examples_of(TUTORIALS / f"{name}.md"):
        example.write_files(newcomer.folder)
        program, *words = shlex.split(example.command.removeprefix(".venv/bin/"))
        is_ours = program == "rampcli"
        if words == ["pretrain", "--factory", "llama3_tiny"]:
            words += SHORTER
        elif name == "phases" and "pretrain" in words:
            words += SHORT_PHASES[words[-1]]
        ended = newcomer.start(*words) if is_ours else newcomer.run(program, *words)
        fails = any(line.startswith("error: ") for line in example.shown)
        assert ended.returncode == (2 if fails else 0), example.place + ended.stdout + ended.stderr
        if "generate" not in words:
            printed = (ended.stdout + ended.stderr).splitlines()
            found = difference(example.shown, printed, in_one_line=not is_ours)
            assert found is None, f"{example.place}: {found}"


def test_the_notebook_tutorial_can_be_followed_from_an_empty_folder(newcomer):
    page = (TUTORIALS / "notebook.md").read_text(encoding="utf-8")
    blocks = CELL.findall(page)
    cells = [nbformat.v4.new_code_cell(code) for code, _ in blocks]
    notebook = newcomer.folder / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook)
    path = f"{newcomer.python.parent}:/usr/bin:/bin"
    ended = newcomer.run(newcomer.python, "-c", EXECUTE, PATH=path)
    assert ended.returncode == 0, ended.stderr
    executed = json.loads(notebook.read_text())["cells"]
    for cell, (code, shown) in zip(executed, blocks, strict=True):
        printed = "\n".join(
            "".join(output.get("text") or output["data"]["text/plain"])
            for output in cell["outputs"]
            if output["output_type"] in ("stream", "execute_result")
        )
        expected = [line for line in shown.splitlines() if line.strip()]
        found = difference(expected, printed.splitlines())
        assert found is None, f"{code}: {found}"
