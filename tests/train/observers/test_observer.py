import inspect

import pytest

from rampcli.checkpoint.state import TrainingState
from rampcli.train.observers.observer import LoopObserver, ObserverList
from rampcli.train.step import StepResult

METHODS = [name for name in vars(LoopObserver) if not name.startswith("_")]


class Recorder(LoopObserver):
    """Records its calls. `reason` is what it answers before an update."""

    def __init__(self, name: str, calls: list[tuple[str, str]], reason: str | None = None) -> None:
        self.name = name
        self.calls = calls
        self.reason = reason

    def __getattribute__(self, method: str):
        if method not in METHODS:
            return super().__getattribute__(method)

        def record(*_, **__):
            self.calls.append((self.name, method))
            return self.reason

        return record


@pytest.mark.parametrize("method", METHODS)
def test_every_call_reaches_all_observers_in_order(method):
    calls: list[tuple[str, str]] = []
    parameters = list(inspect.signature(getattr(LoopObserver, method)).parameters.values())[1:]
    positional = [None for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    named = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY}
    observers = ObserverList([Recorder("first", calls), Recorder("second", calls)])
    getattr(observers, method)(*positional, **named)
    assert calls == [("first", method), ("second", method)]


def test_the_first_reason_to_skip_a_step_counts():
    result, state = StepResult(loss=1.0, grad_norm=1.0), TrainingState()
    for reasons, expected in (
        ([None, None], None),
        ([None, "late"], "late"),
        (["one", "other"], "one"),
    ):
        observers = ObserverList([Recorder("", [], reason) for reason in reasons])
        assert observers.before_update(state, result) == expected


def test_an_observer_that_overrides_nothing_does_nothing():
    state = TrainingState(step=3, consumed_samples=12)
    observer = LoopObserver()
    observer.at_start(state)
    assert observer.before_update(state, StepResult(loss=1.0, grad_norm=1.0)) is None
    observer.at_end(state, "complete", save_s=0.0)
    assert state == TrainingState(step=3, consumed_samples=12)
