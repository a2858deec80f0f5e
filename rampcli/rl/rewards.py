"""Reward functions: how good a response is, and the process that runs one of the user.

A reward function takes the prompt, the response and the example that the prompt comes from. It
returns a number; larger is better. A built-in one raises an `ExampleError` if the example lacks
what it needs.
"""

import codecs
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rampcli.errors import visible
from rampcli.files.records import MOST
from rampcli.machine.interpreter import python_command, safe_environment
from rampcli.machine.lifeline import signal_name
from rampcli.settings.rewards import UserFunction

Reward = Callable[[str, str, Mapping[str, Any]], float]
"""`(prompt, response, example) -> reward`. The example is a record of the data, as in its file."""
Pair = tuple[str, str, Mapping[str, Any]]
"""A prompt, a response to it, and the example that the prompt comes from."""
CHILD = "rampcli.rl.reward_child"
CHECK_EVERY_S = 0.02
"""How often to look whether the process has ended. Its answers are noticed at once."""
CHUNK_BYTES = 2**16
MOST_PRINTED = 2**14
"""Characters that the function may print while it scores a batch. The rest is left out."""
LONGEST_ANSWER_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Score:
    """The outcome of scoring a pair.

    Attributes:
        reward: the reward, finite; NaN if the pair could not be scored.
        reason: why the pair could not be scored, in one line; None if it was.
    """

    reward: float
    reason: str | None = None


class ExampleError(Exception):
    """An example lacks what a built-in reward function needs. The message names the field."""


def exact_match(_prompt: str, response: str, example: Mapping[str, Any]) -> float:
    """Returns 1 if the response is the example's answer, else 0.

    Whitespace around the response and around the answer does not count.
    """
    return float(response.strip() == _answer(example))


def contains(_prompt: str, response: str, example: Mapping[str, Any]) -> float:
    """Returns 1 if the example's answer occurs in the response, else 0.

    Whitespace around the answer does not count.
    """
    return float(_answer(example) in response)


def length(_prompt: str, response: str, example: Mapping[str, Any]) -> float:
    """Returns minus the distance, in characters, between the response and the wanted length.

    The wanted length is the example's field `length`.
    """
    wanted = example.get("length")
    if type(wanted) is not int or not 0 <= wanted <= MOST:
        raise ExampleError("the example has no length that is a whole number, 0 or more")
    return float(-abs(len(response) - wanted))


BUILT_IN: dict[str, Reward] = {"exact_match": exact_match, "contains": contains, "length": length}


def _answer(example: Mapping[str, Any]) -> str:
    """Returns the field `answer` of an example, or `response` if `answer` is missing.

    A whole number counts as its digits.
    """
    field = "response" if example.get("answer") is None else "answer"
    answer = example.get(field)
    if answer is None:
        raise ExampleError("the example has neither answer nor response")
    if type(answer) not in (str, int):
        raise ExampleError(f"the field {field} of the example is not text")
    return str(answer).strip()


class RewardProcess:
    """A process that runs a reward function of the user.

    It leads a session of its own, so Ctrl-C in the terminal does not reach it. It dies with this
    process. What it prints is copied to standard error.
    """

    def __init__(self, function: UserFunction) -> None:
        """Starts the process. Its first answer says whether the function could be loaded."""
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        try:
            self._process = subprocess.Popen(
                python_command(CHILD, str(function), str(requests), str(answers), str(os.getpid())),
                env=safe_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(requests, answers),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._requests)
            os.close(self._answers)
            raise
        finally:
            os.close(requests)
            os.close(answers)
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        for pipe in (self._requests, self._answers, self._output):
            os.set_blocking(pipe, False)
        self._pipes = select.poll()
        self._pipes.register(self._answers, select.POLLIN)
        self._pipes.register(self._output, select.POLLIN)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown = 0  # characters
        self._unread = b""
        self._answered = 0

    def exchange(
        self,
        request: bytes,
        *,
        deadline_s: float,
        between: Callable[[], None] = lambda: None,
    ) -> Score | str:
        """Sends a request, and returns its answer or why it is missing.

        If it is missing, the process has ended or is of no more use: the caller must call `end`.

        Args:
            request: a line, as `rampcli.rl.reward_child` reads it; empty for the first answer.
            deadline_s: how long the answer may take.
            between: called for each pair, and several times a second while one is rewarded.
        """
        unsent, progress_at = memoryview(request), time.monotonic()
        while True:
            between()
            self._wait(to_send=bool(unsent))
            has_ended = self.has_ended()  # asked first: its last answer is still in the pipe
            sent, answer = self._send(unsent), self._receive()
            unsent = unsent[sent:]
            if answer is not None:
                return answer
            if sent:
                progress_at = time.monotonic()
            elif has_ended:
                return self._cause_of_end()
            elif time.monotonic() - progress_at > deadline_s:
                self._kill()
                return self._receive() or f"it took longer than {deadline_s:g} s"

    def show_again(self) -> None:
        """Lets the function print `MOST_PRINTED` characters more."""
        self._shown = 0

    def has_ended(self) -> bool:
        """Returns whether the process has ended."""
        return self._exit(os.WNOHANG) is not None

    def end(self, *, wait_s: float = 0.0) -> None:
        """Ends the process and all others of its process group.

        Args:
            wait_s: time that it gets to exit in an orderly way, if it waits for a request.
        """
        os.close(self._requests)
        self.show_again()
        until = time.monotonic() + wait_s
        while not self.has_ended() and time.monotonic() < until:
            self._wait(to_send=False)
            self._show_output()
        self._kill()
        self._show_output()
        self._process.wait()
        os.close(self._answers)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _kill(self) -> None:
        # Not after `Popen.wait`: from then on the number may belong to another process.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._exit()

    def _exit(self, options: int = 0) -> os.waitid_result | None:
        """Returns how the process has ended, or None if it has not. Its number stays taken."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | options)

    def _cause_of_end(self) -> str:
        ended = self._exit()
        assert ended is not None
        if ended.si_code == os.CLD_EXITED:
            return f"its process exited with code {ended.si_status}"
        return f"its process was killed by {signal_name(ended.si_status)}"

    def _wait(self, *, to_send: bool) -> None:
        """Waits until a pipe is ready, or `CHECK_EVERY_S` have passed."""
        if to_send:
            self._pipes.register(self._requests, select.POLLOUT)
        self._pipes.poll(CHECK_EVERY_S * 1000)
        if to_send:
            self._pipes.unregister(self._requests)

    def _send(self, requests: memoryview) -> int:
        """Sends as many bytes as the pipe has room for, and returns their number."""
        if not requests:
            return 0
        try:
            return os.write(self._requests, requests)
        except (BlockingIOError, BrokenPipeError):  # the latter if the process has ended
            return 0

    def _receive(self) -> Score | str | None:
        """Returns the answer if it has come, or why it cannot be one.

        Shows what the function has printed before it.
        """
        self._unread += self._read(self._answers)
        self._show_output()
        line, end, rest = self._unread.partition(b"\n")
        if not end and len(line) <= LONGEST_ANSWER_BYTES:
            return None
        answer = _parse(line, self._answered)
        if answer is None or rest:
            return "it wrote to the pipe of its rewards"
        self._unread = b""
        self._answered += 1
        return answer

    def _read(self, pipe: int) -> bytes:
        """Returns what can be read from a pipe at once. Stops waiting for one that has ended."""
        try:
            chunk = os.read(pipe, CHUNK_BYTES)
        except BlockingIOError:
            return b""
        if not chunk:
            with suppress(KeyError):
                self._pipes.unregister(pipe)
        return chunk

    def _show_output(self) -> None:
        """Copies the output of the function to standard error."""
        chunk = self._read(self._output)
        left = MOST_PRINTED - self._shown
        if not chunk or left < 0:
            return
        text = self._decoder.decode(chunk)
        self._shown += len(text)
        if len(text) > left:
            text = f"{text[:left]}\n[the reward function printed more than is shown]\n"
        with suppress(OSError, ValueError):  # a full disk, or a closed file
            sys.stderr.write(visible(text, keeps="\n\t"))
            sys.stderr.flush()


def _parse(line: bytes, number: int) -> Score | None:
    """Returns an answer, or None if the line is not the answer with this number."""
    try:
        given, reward, reason = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    if given != number or not isinstance(reason, str | None):
        return None
    if reward is None:
        return Score(math.nan, reason)
    return Score(reward) if type(reward) is float and reason is None else None
