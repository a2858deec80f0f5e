import pytest
import torch

from rampcli import llm
from rampcli.checkpoint.state import TrainingState
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import COMPLETE, PREEMPTED, STAGE_BOUNDARY, RunDirectory
from rampcli.runs.rows import read_rows
from rampcli.train.observers.profiler import Profiler
from taken_steps import step_of

CPU = torch.device("cpu")


def end_inside_the_window(run: RunDirectory, status: str, *, steps_taken: int) -> None:
    """Ends processes in the third step of a window that begins at step 5."""
    profiler = Profiler(run, steps=[5, 9], ranks=[0], device=CPU)
    taken = step_of(resolve(llm.from_factory("llama3_tiny")), 0, 0.5)
    for step in range(4, 5 + steps_taken):
        profiler.before_step(TrainingState(step=step, consumed_samples=4 * step))
        torch.ones(3).sum()
        if step < 4 + steps_taken:
            profiler.after_step(TrainingState(step=step + 1, consumed_samples=4 * step + 4), taken)
    end = 4 + steps_taken
    profiler.at_end(TrainingState(step=end, consumed_samples=4 * end), status, save_s=0.0)


@pytest.mark.parametrize("status", [STAGE_BOUNDARY, COMPLETE])
def test_processes_that_end_inside_the_window_write_its_whole_steps(alone, status, tmp_path):  # noqa: ARG001
    run = RunDirectory(tmp_path)
    end_inside_the_window(run, status, steps_taken=2)
    (event,) = read_rows(run.events)
    assert (event["event"], event["steps"]) == ("profile", [5, 6])
    assert [path.name for path in run.profile.iterdir()] == ["steps_5-6.rank_0.json.gz"]


@pytest.mark.parametrize(("status", "steps_taken"), [(PREEMPTED, 2), (COMPLETE, 0)])
def test_a_stop_request_or_no_whole_step_leaves_no_profile(alone, status, steps_taken, tmp_path):  # noqa: ARG001
    run = RunDirectory(tmp_path)
    end_inside_the_window(run, status, steps_taken=steps_taken)
    assert list(read_rows(run.events)) == []
    assert not run.profile.exists()
