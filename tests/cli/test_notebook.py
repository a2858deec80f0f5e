"""`rampcli.run` in a notebook that a real kernel executes."""

import json
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tiny_runs import Run

WORDS = (
    "model.rampup_batch_size=null",
    "trainer.num_nodes=1",
    "trainer.val_samples=0",
    "trainer.max_samples=8_000_000",
)
TRAIN = """
import os, signal, rampcli
from rampcli import llm
from rampcli.config.compose import apply_overrides

class Interrupt(rampcli.Observer):
    def on_row(self, row):
        if row["step"] == 3:  # as "Interrupt kernel" does
            os.kill(os.getpid(), signal.SIGINT)

recipe = apply_overrides(llm.llama3_tiny.pretrain_recipe(), {words}).config()
outcome = rampcli.run(recipe, observers=[Interrupt()])
"""


def test_a_notebook_shows_progress_in_place_and_its_interrupt_saves_and_stops(tmp_path):
    run = Run(tmp_path / "run")
    cells = [
        TRAIN.format(words=run.overrides(WORDS)),
        "print(outcome.status, outcome.exit_code, outcome.state['next']['command'])",
    ]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", resources=place, timeout=300).execute()
    trained, after = (cell.outputs for cell in notebook.cells)
    (line,) = [output for output in trained if output.output_type == "display_data"]
    text = "".join(output.text for output in trained if output.output_type == "stream")
    assert "loss" in line.data["text/plain"]
    assert line.data["text/html"].startswith("<progress ")
    assert {output.output_type for output in trained} == {"display_data", "stream"}
    data, starting = text.splitlines()[:2]
    assert data == "data: mock (random tokens)"
    assert starting == "starting stage 1/1: batch 8, 1 process on CPU"
    assert text.endswith("resume with rampcli.run and the same configuration\n")
    assert "\x1b" not in json.dumps(notebook)
    assert after[0].text == "preempted 130 None\n"
    assert (run.state["status"], run.state["step"]) == ("preempted", len(run.rows))
    assert (Path(run.path) / "checkpoints").is_dir()
