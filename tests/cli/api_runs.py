"""`rampcli.run` in threads: `python -m cli.api_runs FOLDER`. Writes what happened as JSON."""

import json
import sys
import threading
from pathlib import Path

import rampcli
from rampcli import llm
from rampcli.config.compose import apply_overrides
from tiny_runs import Run

WORDS = ["model.rampup_batch_size=[4,4,8]", "trainer.num_nodes=1", "trainer.max_samples=32"]


class Listener(rampcli.Observer):
    """Notes what it hears, and fails at a step."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.heard: list[object] = []

    def on_start(self, stage, world, *, gpus):
        self.heard.append(["start", stage.stage, world.ranks, gpus])

    def on_row(self, row):
        self.heard.append(row["step"])
        if row["step"] == self.fails_at:
            raise LookupError("the observer failed")

    def on_event(self, row):
        if row["event"] == "validation":
            self.heard.append(row["event"])


def train(path: Path, listener: Listener, *words: str) -> dict[str, object]:
    recipe = llm.llama3_tiny.pretrain_recipe()
    config = apply_overrides(recipe, Run(path).overrides([*WORDS, *words])).config()
    try:
        outcome = rampcli.run(config, observers=[listener])
        ended: object = [outcome.status, outcome.exit_code]
    except LookupError as error:
        ended = str(error)
    return {"ended": ended, "heard": listener.heard}


def main() -> None:
    folder, results = Path(sys.argv[1]), {}
    runs = {
        "one": (Listener(),),
        "two": (Listener(), "seed=7"),
        "failing": (Listener(fails_at=3), "trainer.max_samples=8000"),
    }

    def run(name: str) -> None:
        results[name] = train(folder / name, *runs[name])

    threads = [threading.Thread(target=run, args=[name]) for name in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
