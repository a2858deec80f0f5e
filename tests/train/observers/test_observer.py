import inspect

import pytest

from rampcli.checkpoint.state import TrainingState
from rampcli.train.observers.observer import LoopObserver, ObserverList

METHODS = [name for name in vars(LoopObserver) if not name.startswith("_")]


class Recorder(LoopObserver):
    """Records its calls, and returns `answer`."""

    def __init__(self, name: str, calls: list[tuple[str, str]], answer: bool = False) -> None:
        self.name = name
        self.calls = calls
        self.answer = answer

    def __getattribute__(self, method: str):
        if method not in METHODS:
            return super().__getattribute__(method)

        def record(*_, **__):
            self.calls.append((self.name, method))
            return self.answer

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


def test_a_step_is_needed_if_one_of_the_observers_needs_it():
    for answers in ([], [False, False], [False, True], [True, False]):
        observers = ObserverList([Recorder("", [], answer) for answer in answers])
        assert observers.needs(3) == any(answers)


def test_an_observer_that_overrides_nothing_does_nothing():
    state = TrainingState(step=3, consumed_samples=12)
    observer = LoopObserver()
    observer.at_start(state)
    assert not observer.needs(3)
    observer.at_end(state, "complete", save_s=0.0)
    assert state == TrainingState(step=3, consumed_samples=12)
