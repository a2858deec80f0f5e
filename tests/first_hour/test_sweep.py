"""A newcomer compares learning rates."""

import json
import os
import signal
import subprocess

from processes import DEADLINE_S, killed_at_the_end, wait_until

TINY = [
    *("data=mock", "data.sequence_length=16", "data.micro_batch_size=2", "trainer.num_nodes=1"),
    *("model.vocab_size=64", "model.hidden_size=32", "model.num_layers=2"),
    *("model.ffn_hidden_size=64", "model.rampup_batch_size=null"),
    *("optim.warmup_samples=8", "trainer.val_samples=4", "trainer.accelerator=cpu"),
]


def sweep(*words):
    batch = [] if any("batch" in word for word in words) else ["model.global_batch_size=4"]
    return ["sweep", "--factory", "llama3_tiny", *TINY, *batch, *words]


def interrupt(newcomer, metrics, after_steps, *words):
    """Starts a sweep, interrupts it once a run has taken more steps, and returns what it printed.

    Args:
        newcomer: who starts it.
        metrics: file of the run's steps.
        after_steps: number of steps.
        words: of the sweep.
    """
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [newcomer.python.with_name("rampcli"), *sweep(*words)],
        cwd=newcomer.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with killed_at_the_end(process):
        wait_until(lambda: len(steps_in(metrics)) > after_steps, process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, output
    return output


def steps_in(metrics):
    """Returns the numbers of the steps that a run has taken. The last line may be incomplete."""
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("\n")]


def states(newcomer):
    runs = json.loads(newcomer.succeed("report", "llama3_tiny_sweep", "--json"))["runs"]
    return {run["values"]["optim.lr"]: (run["state"], run["steps"]) for run in runs}


def test_a_sweep_survives_ctrl_c_and_a_run_that_diverges(newcomer):
    words = ["optim.lr=1e-3,1e18,1e-2", "trainer.val_every_steps=null"]
    folder = newcomer.folder / "runs/llama3_tiny_sweep"
    plan = newcomer.succeed(*sweep(*words, "trainer.max_samples=2000", "--dry-run")).splitlines()
    assert [line.split()[:2] for line in plan[1:5]] == [
        *(["0.001", "4"], ["1e+18", "4"], ["0.01", "4"]),
        ["total", "1,500"],
    ]
    assert not folder.exists()

    first = folder / "optim.lr=0.001/metrics.jsonl"
    endless = [*words, "trainer.max_samples=8_000_000"]
    output = interrupt(newcomer, first, 0, *endless)
    assert "resume with:\n  rampcli sweep --factory llama3_tiny data=mock" in output
    assert "the sweep stopped at run 1 of 3; the same command resumes it" in output
    interrupted = states(newcomer)
    assert {lr: state for lr, (state, _) in interrupted.items()} == {
        "0.001": "interrupted",
        "1e+18": "not started",
        "0.01": "not started",
    }
    assert "llama3_tiny_sweep/optim.lr=0.001" in newcomer.succeed("status")

    taken = interrupted["0.001"][1]
    assert "the sweep stopped at run 1 of 3" in interrupt(newcomer, first, taken, *endless)
    assert steps_in(first) == [*range(1, states(newcomer)["0.001"][1] + 1)]

    steps = len(steps_in(first)) + 50
    words.append(f"trainer.max_samples={4 * steps}")
    resumed = newcomer.start(*sweep(*words), OMP_NUM_THREADS="1")
    assert resumed.returncode == 1, resumed.stdout + resumed.stderr
    assert "the loss is nan" in resumed.stdout
    assert states(newcomer) == {
        "0.001": ("complete", steps),
        "1e+18": ("failed", 1),
        "0.01": ("complete", steps),
    }
    assert steps_in(first) == [*range(1, steps + 1)]

    fewer = ["optim.lr=0.01,0.001", *words[1:]]
    again = newcomer.succeed(*sweep(*fewer, "--plot", "lr.svg"))
    assert again.startswith("run 1 of 2: optim.lr=0.01 is complete\n")
    assert again.count(" best") == 1
    assert (newcomer.folder / "lr.svg").exists()
    assert newcomer.succeed("status", "llama3_tiny_sweep").count("complete") == 2
    other = newcomer.start(*sweep(*fewer, "optim.weight_decay=0.5"))
    assert (other.returncode, other.stdout) == (4, "")
    assert "optim.weight_decay=0.1 (here 0.5)" in other.stderr


def test_every_run_is_checked_before_the_first_one_starts(newcomer):
    printed = newcomer.refused(
        *sweep("optim.lr=1e-3,-1", "model.global_batch_size=4,5", "model.hidden=3")
    )
    assert printed.count("error: ") == 3
    assert "error: with model.global_batch_size=5: " in printed
    assert "error: with optim.lr=-1.0: optim.lr=-1.0 is below 0" in printed
    assert [*newcomer.folder.iterdir()] == []
