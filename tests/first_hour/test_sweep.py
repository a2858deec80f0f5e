"""A newcomer compares learning rates."""

import json
import os
import signal
import subprocess
import time

TINY = [
    *("data=mock", "data.sequence_length=16", "data.micro_batch_size=2", "trainer.num_nodes=1"),
    *("model.vocab_size=64", "model.hidden_size=32", "model.num_layers=2"),
    *("model.ffn_hidden_size=64", "model.rampup_batch_size=null"),
    *("optim.warmup_samples=8", "trainer.val_samples=4", "trainer.accelerator=cpu"),
]
PATIENCE_S = 300.0


def sweep(*words):
    batch = [] if any("batch" in word for word in words) else ["model.global_batch_size=4"]
    return ["sweep", "--factory", "llama3_tiny", *TINY, *batch, *words]


def interrupt(newcomer, number, after, *words):
    """Starts a sweep, sends a signal once a file exists, and returns exit code and output."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [newcomer.python.with_name("rampcli"), *sweep(*words)],
        cwd=newcomer.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until = time.monotonic() + PATIENCE_S
    while not after.exists() and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(number)
    output, _ = process.communicate()
    return process.returncode, output


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
    endless = "trainer.max_samples=8_000_000"
    code, output = interrupt(newcomer, signal.SIGINT, first, *words, endless)
    assert code == 130, output
    assert "resume with:\n  rampcli sweep --factory llama3_tiny data=mock" in output
    assert "the sweep stopped at run 1 of 3; the same command resumes it" in output
    interrupted = states(newcomer)
    assert {lr: state for lr, (state, _) in interrupted.items()} == {
        "0.001": "interrupted",
        "1e+18": "not started",
        "0.01": "not started",
    }
    assert "llama3_tiny_sweep/optim.lr=0.001" in newcomer.succeed("status")

    steps = interrupted["0.001"][1] + 50
    words.append(f"trainer.max_samples={4 * steps}")
    resumed = newcomer.start(*sweep(*words), OMP_NUM_THREADS="1")
    assert resumed.returncode == 1, resumed.stdout + resumed.stderr
    assert "the loss is nan" in resumed.stdout
    assert states(newcomer) == {
        "0.001": ("complete", steps),
        "1e+18": ("failed", 1),
        "0.01": ("complete", steps),
    }
    taken = [json.loads(line)["step"] for line in first.read_text().splitlines()]
    assert taken == [*range(1, steps + 1)]

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
