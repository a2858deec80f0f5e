from rich.console import Console

from rampcli.report.tables import profile_table, profile_title
from rampcli.runs.directory import RunDirectory
from rampcli.runs.events import read_events


def record(run: RunDirectory, *, rank: int, steps: list[int], **operator: float) -> None:
    run.append_event(
        "profile",
        step=steps[1],
        consumed_samples=4 * steps[1],
        rank=rank,
        steps=steps,
        files=[f"profile/steps_{steps[0]}-{steps[1]}.rank_{rank}.json.gz"],
        operators=[{"name": "aten::mm", "calls": 1200, **operator}],
    )


def printed(table) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_window_that_was_profiled_again_counts_once(tmp_path):
    run = RunDirectory(tmp_path)
    for rank, self_cpu_s in ((0, 0.5), (1, 0.25), (0, 0.125)):
        record(run, rank=rank, steps=[10, 12], self_cpu_s=self_cpu_s)
    record(run, rank=0, steps=[13, 13], self_cpu_s=1.0)
    found = [*read_events(run.events).profiles.values()]
    assert [(row["rank"], row["operators"][0]["self_cpu_s"]) for row in found] == [
        (0, 0.125),
        (1, 0.25),
        (0, 1.0),
    ]
    assert profile_title(found[0]) == "most expensive operators of steps 10 to 12 on rank 0"
    assert profile_title(found[2]) == "most expensive operators of step 13 on rank 0"


def test_the_table_has_the_time_of_a_gpu_if_there_is_one(tmp_path):
    run = RunDirectory(tmp_path)
    record(run, rank=0, steps=[1, 2], self_cpu_s=0.0125)
    record(run, rank=1, steps=[1, 2], self_cpu_s=0.0125, self_device_s=1.5)
    on_cpu, on_gpu = (
        [line.split() for line in printed(profile_table(row)).splitlines()]
        for row in read_events(run.events).profiles.values()
    )
    assert on_cpu == [
        ["operator", "calls", "CPU", "time"],
        ["aten::mm", "1,200", "12.5", "ms"],
    ]
    assert on_gpu[1] == ["aten::mm", "1,200", "12.5", "ms", "1,500.0", "ms"]
