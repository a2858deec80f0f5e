"""Reward functions of users, in real processes."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from processes import processes_with, wait_until
from rampcli.errors import UsageError
from rampcli.rl import rewards
from rampcli.rl.scorer import MOST_LOST, Scorer
from standing import slow_clock

CODE = """
import ctypes, decimal, os, signal, subprocess, sys, threading, time

def evaluate(prompt, response, example):
    return eval(response)

def recurse(depth=0):
    return recurse(depth + 1)

def throw(error):
    raise error

def end_copy():
    copy = os.fork() or time.sleep(1000)
    while os.waitpid(copy, os.WNOHANG) == (0, 0):
        os.kill(copy, signal.SIGTERM)
    return 7

def hang(file):
    while True:
        open(file, "w").close()
        time.sleep(0.05)

class Silent(Exception):
    def __str__(self):
        raise self

def size(prompt, response, example):
    return len(prompt) + len(response) / 1000 + example["more"]
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("user") / "code.py"
    path.write_text(CODE)
    return path


@pytest.fixture(scope="module")
def scorer(file):
    with Scorer(f"{file}:evaluate", deadline_s=60.0) as scorer:
        yield scorer


def evaluate(scorer: Scorer, *responses: str):
    return scorer.score([("", response, {}) for response in responses])


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("throw(KeyboardInterrupt)", "KeyboardInterrupt"),
        ("sys.exit('no more')", "SystemExit: no more"),
        ("throw(Silent())", "Silent"),
        ("throw(Exception('x' * 10**7))", "Exception: xxx"),
        ("throw(Exception('a\\n\\x1b[31m'))", r"Exception: a\n\x1b[31m"),
        ("recurse()", "RecursionError"),
        ("float('nan')", "returned nan, not a finite number"),
        ("-1e400", "returned -inf, not a finite number"),
        ("10**400", "OverflowError"),
        ("1.1e18", "returned 1.1e+18, not a number from -1e18 to 1e18"),
        ("-1e300", "returned -1e+300, not a number from -1e18 to 1e18"),
        ("'1'", "returned a str, not a number"),
        ("None", "returned a NoneType, not a number"),
        ("[0] * 10**7", "returned a list, not a number"),
        ("os.write(3, b'garbage')", "OSError"),
        ("os._exit(3)", "its process exited with code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "its process was killed by SIGKILL"),
        ("ctypes.string_at(0)", "its process was killed by SIGSEGV"),
        ("os.closerange(3, 1000)", "its process exited with code 1"),
        ("os.write(201, b'[1, 2.0, null]\\n')", "it wrote to the pipe of its rewards"),
    ],
)
def test_a_failure_costs_its_own_pair_alone(scorer, response, reason):
    check_failure(scorer, response, reason)


@pytest.mark.parametrize("response", ["hang({file!r})", "os.fork() and hang({file!r})"])
def test_a_score_that_hangs_costs_its_own_pair_alone(scorer, response, tmp_path, monkeypatch):
    file = str(tmp_path / "hangs")
    monkeypatch.setattr(rewards, "time", slow_clock(file))
    check_failure(scorer, response.format(file=file), "it took longer than 60 s")


def check_failure(scorer: Scorer, response: str, reason: str) -> None:
    before, failed, after = evaluate(scorer, "1", response, "2")
    assert (before.reward, after.reward) == (1.0, 2.0)
    assert (before.reason, after.reason) == (None, None)
    assert math.isnan(failed.reward)
    assert failed.reason.startswith(reason)
    assert failed.reason.isprintable()


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("True", 1.0),
        ("decimal.Decimal('0.5')", 0.5),
        ("0.1 + 0.2", 0.1 + 0.2),
        ("7 if os.fork() else 8", 7.0),
        ("7 if os.fork() else throw(SystemExit)", 7.0),
        ("end_copy()", 7.0),
        ("int(open('/proc/self/oom_score_adj').read())", 1000.0),
        ("subprocess.run(['sh', '-c', 'echo; kill $$']).returncode", -15.0),
        ("print('x' * 10**7) or 7", 7.0),
        ("input('?') if False else len(sys.stdin.read())", 0.0),
        ("[os.kill(os.getpid(), number) for number in (1, 2, 10, 15)] and 7", 7.0),
        (f"os.getpid() != os.getsid(0) != {os.getsid(0)}", 1.0),
    ],
)
def test_what_a_function_does_besides_does_not_change_its_score(scorer, response, reward):
    assert [one.reward for one in evaluate(scorer, "1", response, "2")] == [1.0, reward, 2.0]


def test_the_reason_names_the_innermost_line_of_the_users_code(scorer, file):
    line = 1 + CODE.splitlines().index("    raise error")
    (score,) = evaluate(scorer, "throw(ValueError('no'))")
    assert score.reason == f"ValueError: no ({file}:{line}: raise error)"
    line = 1 + CODE.splitlines().index("    return eval(response)")
    (score,) = evaluate(scorer, "__import__('json').loads('{')")
    assert score.reason.endswith(f"({file}:{line}: return eval(response))")


def test_pairs_arrive_unchanged_and_scores_keep_their_order(file):
    odd = "\ud800\n\0\"'é𝔸" * 100
    pairs = [("x" * number, odd, {"more": number / 7}) for number in range(1000)]
    with Scorer(f"{file}:size", deadline_s=10.0) as scorer:
        rewards = [score.reward for score in scorer.score(pairs)]
        assert scorer.score([]) == []
    assert rewards == [len(a) + len(b) / 1000 + c["more"] for a, b, c in pairs]


def test_a_function_that_ends_its_process_each_time_is_given_up_but_tried_again(file):
    with Scorer(f"{file}:evaluate", deadline_s=60.0) as scorer:
        scores = evaluate(scorer, *["os._exit(3)"] * (MOST_LOST + 5))
        reasons = [score.reason for score in scores]
        assert len(set(reasons[:MOST_LOST])) == 1
        given_up = f"gave up after {MOST_LOST} unscored pairs in a row; the last: {reasons[0]}"
        assert set(reasons[MOST_LOST:]) == {given_up}
        assert [score.reward for score in evaluate(scorer, "2", "3")] == [2, 3]


def test_an_example_that_is_not_json_costs_its_own_pair_alone(file):
    with Scorer(f"{file}:size", deadline_s=10.0) as scorer:
        pairs = [("", "", {"more": more}) for more in (1, {2}, 3)]
        scores = scorer.score(pairs)
    assert [scores[0].reward, scores[2].reward] == [1.0, 3.0]
    assert scores[1].reason == "the example cannot be written as JSON"


def test_prints_go_to_standard_error_without_control_characters_and_not_without_limit(
    file, capsys, monkeypatch
):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with Scorer(f"{file}:evaluate", deadline_s=60.0) as scorer:
        evaluate(scorer, r"print('out \x1b[31m') or print('err', file=sys.stderr) or 1")
        assert capsys.readouterr() == ("", "out \\x1b[31m\nerr\n")
        evaluate(scorer, "print('x' * 10**7) or 1", "print('unseen') or 1")
        printed = capsys.readouterr().err
    assert printed.startswith("xxx")
    assert printed.endswith("[the reward function printed more than is shown]\n")
    assert len(printed) < 20_000


def test_a_score_that_was_interrupted_does_not_spoil_the_next(scorer):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    with pytest.raises(KeyboardInterrupt):
        evaluate(
            scorer, "1", f"os.kill({os.getpid()}, signal.SIGALRM) or time.sleep(0.2) or 2", "3"
        )
    signal.signal(signal.SIGALRM, before)
    assert [score.reward for score in evaluate(scorer, "4", "5")] == [4.0, 5.0]


def test_a_process_that_died_between_two_batches_costs_no_pair(scorer):
    own, parent = (int(score.reward) for score in evaluate(scorer, "os.getpid()", "os.getppid()"))
    os.kill(own, signal.SIGKILL)
    status = Path(f"/proc/{parent}/stat")
    wait_until(lambda: ") Z " in status.read_text())
    assert [score.reward for score in evaluate(scorer, "4", "5")] == [4.0, 5.0]


BAD_FILES = {
    "syntax": ("def score(:", "SyntaxError"),
    "import": ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of"),
    "raise": ("1 / 0", "ZeroDivisionError: division by zero ("),
    "exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "die": ("import os; os._exit(3)", "its process exited with code 3"),
    "fork": ("import os; os.fork()", "it has no function score"),
    "missing": ("def scores(a, b, c): pass", "it has no function score; it has scores"),
    "number": ("score = 1", "it has no function score"),
    "arguments": ("def score(prompt, response): pass", "score(prompt, response) does not take"),
    "hang": ("import time; time.sleep(1000)", "it took longer than 0.5 s"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_function_that_cannot_be_loaded_is_refused_with_the_reason(name, tmp_path, capsys):
    text, reason = BAD_FILES[name]
    (tmp_path / "bad.py").write_text(text)
    scorer = Scorer(
        f"{tmp_path}/bad.py:score",
        deadline_s=1.0,
        import_deadline_s=0.5 if name == "hang" else 60.0,
    )
    with pytest.raises(UsageError) as refused, scorer:
        pass
    assert refused.value.keys == ("rl.reward",)
    assert reason in refused.value.message
    assert refused.value.remedy.startswith("def score(prompt, response, example)")
    if name in ("syntax", "import", "raise", "exit"):
        assert f'File "{tmp_path}/bad.py", line 1' in capsys.readouterr().err
    wait_until(lambda: not processes_with(str(tmp_path)))


def test_a_file_that_is_named_like_a_module_is_offered(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/rewards.py").touch()
    with (
        pytest.raises(UsageError, match="No module named 'mine'") as refused,
        Scorer("mine.rewards:score", deadline_s=1),
    ):
        pass
    assert refused.value.remedy == "rl.reward=mine/rewards.py:score"


def test_a_script_that_starts_its_run_when_it_is_imported_is_refused_at_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from rampcli.rl.scorer import Scorer\n"
        "def score(prompt, response, example):\n    return 0\n"
        "with Scorer(f'{__file__}:score', deadline_s=1):\n    pass\n"
    )
    with (
        pytest.raises(UsageError, match=r"rampcli\.run belongs under if __name__"),
        Scorer(f"{script}:score", deadline_s=1),
    ):
        pass


def test_a_file_finds_its_neighbours_and_runs_at_exit(tmp_path, capsys):
    (tmp_path / "neighbour.py").write_text("reward = 7")
    (tmp_path / "mine.py").write_text(
        "import atexit, neighbour\n"
        "assert __name__ == 'mine'\n"
        "atexit.register(print, 'bye')\n"
        "def score(prompt, response, example): return neighbour.reward\n"
    )
    with Scorer(f"{tmp_path}/mine.py:score", deadline_s=10.0) as scorer:
        assert evaluate(scorer, "")[0].reward == 7.0
    assert capsys.readouterr().err == "bye\n"


@pytest.mark.parametrize(("path", "imports"), [(":", False), ("{here}", True), (".", True)])
def test_a_module_is_imported_from_the_working_directory_only_if_pythonpath_names_it(
    path, imports, tmp_path, monkeypatch
):
    (tmp_path / "planted.py").write_text("def score(prompt, response, example): return 7")
    monkeypatch.setenv("PYTHONPATH", path.format(here=tmp_path))
    scorer = Scorer("planted:score", deadline_s=10.0)
    if imports:
        with scorer:
            assert evaluate(scorer, "")[0].reward == 7.0
    else:
        with pytest.raises(UsageError, match="No module named 'planted'"), scorer:
            pass


def test_built_in_functions_need_no_process_and_name_the_missing_field():
    with Scorer("exact_match", deadline_s=1.0) as scorer:
        found, missing = scorer.score([("", "42", {"answer": "42"}), ("", "42", {})])
    assert (found.reward, found.reason) == (1.0, None)
    assert math.isnan(missing.reward)
    assert "answer" in missing.reason


PARENT = """
import sys
from rampcli.rl.scorer import Scorer
with Scorer(sys.argv[1], deadline_s=1000) as scorer:
    scorer.score([("", response, {}) for response in sys.argv[2:]])
"""


@pytest.mark.parametrize(
    "response",
    [
        "os.fork() and 0 or time.sleep(1000)",
        "subprocess.run(['sh', '-c', 'sleep 1000; exit', __file__])",
    ],
)
def test_nothing_outlives_the_process_that_scores_even_if_it_is_killed(response, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(CODE)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, f"{own}:evaluate", response, "time.sleep(1000)"]
    )
    try:
        # This process, the guard, the function's and the one that it starts.
        wait_until(lambda: len(processes_with(str(own))) >= 4)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not processes_with(str(own)))
