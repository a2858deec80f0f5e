"""Scores responses with a reward function.

Built-in functions run in this process. A function of the user runs in a process of its own, see
`rampcli.rl.rewards`, so that nothing it does can harm this one: a pair whose score hangs,
crashes or is not a number costs this pair its score, and no other.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Self

from rampcli.errors import UsageError
from rampcli.rl.rewards import BUILT_IN, CHILD, ExampleError, Pair, Reward, RewardProcess, Score
from rampcli.settings.rewards import KEY, UserFunction, parse_reward_name

IMPORT_DEADLINE_S = 60.0
EXIT_S = 2.0
"""Time that the user's process gets to exit in an orderly way."""
MOST_LOST = 8
"""Give up on the rest of a batch once this many pairs in a row crashed the process or timed out.

Otherwise, a function that always hangs would take hours.
"""
UNSENDABLE = "the example cannot be written as JSON"


class Scorer:
    """Scores pairs with one reward function.

    Use it in a `with` statement, which starts the process of a user's function and ends it.
    """

    def __init__(
        self, name: str, *, deadline_s: float, import_deadline_s: float = IMPORT_DEADLINE_S
    ) -> None:
        """Finds the function.

        Args:
            name: name of a built-in function, `module:function` or `FILE.py:function`.
            deadline_s: how long a user's function may take for one pair.
            import_deadline_s: how long the import of its module may take.

        Raises:
            UsageError: there is no such function, as far as can be told without importing it.
        """
        self.function = parse_reward_name(name)
        self.deadline_s = deadline_s
        self.import_deadline_s = import_deadline_s
        self._process: RewardProcess | None = None
        self._lost_in_a_row = 0

    def __enter__(self) -> Self:
        """Starts the process of a user's function.

        Raises:
            UsageError: the function cannot be imported.
        """
        if isinstance(self.function, UserFunction):
            self._process = self._start(self.function)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(wait_s=EXIT_S if kind is None else 0.0)

    def score(
        self, pairs: Sequence[Pair], *, between: Callable[[], None] = lambda: None
    ) -> list[Score]:
        """Returns the score of each pair, in their order.

        Calls `between` for each pair, and several times a second while a user's function runs. An
        exception that it raises ends the function.

        Raises:
            UsageError: the process of the function had to be started again, and the function can no
                longer be imported.
        """
        if not isinstance(self.function, UserFunction):
            return [_score_here(BUILT_IN[self.function], pair) for pair in pairs]
        requests = [_request(pair) for pair in pairs]
        sent = [one for one in requests if one]
        scores = iter(self._score_there(self.function, sent, between))
        return [next(scores) if one else Score(math.nan, UNSENDABLE) for one in requests]

    def _score_there(
        self, function: UserFunction, requests: Sequence[bytes], between: Callable[[], None]
    ) -> list[Score]:
        """Sends requests to the user's process. After one that ends it, starts it again."""
        scores = list[Score]()
        if self._process is not None:
            self._process.show_again()
        for request in requests:
            if self._process is not None and self._process.has_ended():
                self._end()
            if self._process is None:
                self._process = self._start(function)
            try:
                answer = self._process.exchange(
                    request, deadline_s=self.deadline_s, between=between
                )
            except BaseException:
                self._end()  # the next pair would get the answer that is still to come
                raise
            if isinstance(answer, Score):
                self._lost_in_a_row = 0
                scores.append(answer)
                continue
            self._end()
            self._lost_in_a_row += 1
            scores.append(Score(math.nan, answer))
            if self._lost_in_a_row >= MOST_LOST:
                reason = f"gave up after {MOST_LOST} unscored pairs in a row; the last: {answer}"
                scores += [Score(math.nan, reason)] * (len(requests) - len(scores))
                break
        return scores

    def _start(self, function: UserFunction) -> RewardProcess:
        """Starts a process. Refuses inside a reward process, which would start another one."""
        if getattr(sys.modules["__main__"].__spec__, "name", None) == CHILD:
            raise UsageError(
                'rampcli.run belongs under if __name__ == "__main__": the import of the reward'
                " function called it again"
            )
        process = RewardProcess(function)
        try:
            answer = process.exchange(b"", deadline_s=self.import_deadline_s)
        except BaseException:
            process.end()
            raise
        reason = answer.reason if isinstance(answer, Score) else answer
        if reason is not None:
            process.end()
            file = f"{function.source.replace('.', '/')}.py"
            raise UsageError(
                f"cannot load {KEY}={function}: {reason}",
                keys=(KEY,),
                remedy=f"{KEY}={file}:{function.function}"
                if os.path.isfile(file)
                else f"def {function.function}(prompt, response, example), which returns a number",
            )
        return process

    def _end(self, *, wait_s: float = 0.0) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(wait_s=wait_s)


def _score_here(reward: Reward, pair: Pair) -> Score:
    try:
        return Score(reward(*pair))
    except ExampleError as error:
        return Score(math.nan, str(error))


def _request(pair: Pair) -> bytes:
    """Returns a pair as a line for the user's process, or nothing if it cannot be sent."""
    try:
        # ASCII, so that a lone half of a surrogate pair gets through.
        return f"{json.dumps(pair)}\n".encode("ascii")
    except (TypeError, ValueError, RecursionError):
        return b""
