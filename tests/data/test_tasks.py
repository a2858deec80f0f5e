from hypothesis import given
from hypothesis import strategies as st

from rampcli.data.examples import TASK_CHARACTERS, TASKS, pose

POSED = st.fixed_dictionaries(
    {
        "digits": st.integers(1, 64),
        "seed": st.integers(0, 2**62),
        "index": st.integers(0, 2**40),
        "attempt": st.integers(0, 1000),
    }
)


@given(posed=POSED)
def test_answers_are_right_and_as_long_as_all_others_of_the_task(posed):
    digits = posed["digits"]
    prompt, answer = pose("sort", **posed)
    assert len(prompt) == digits + 1
    assert list(answer) == sorted(prompt.removesuffix("="))
    prompt, answer = pose("reverse", **posed)
    assert len(prompt) == digits + 1
    assert f"{answer[::-1]}=" == prompt
    prompt, answer = pose("add", **posed)
    first, second = prompt.removesuffix("=").split("+")
    assert len(first) == len(second) == digits
    assert int(answer) == int(first) + int(second)
    assert len(answer) == digits + 1


@given(posed=POSED)
def test_prompts_and_answers_have_the_characters_of_tasks_only(posed):
    for name in TASKS:
        assert set("".join(pose(name, **posed))) <= set(TASK_CHARACTERS)


def test_a_prompt_depends_on_every_argument_and_on_nothing_else():
    facts = {"digits": 20, "seed": 1, "index": 2, "attempt": 3}
    one = pose("sort", **facts)
    assert pose("sort", **facts) == one == ("96669367562576422829=", "22223455666666778999")
    others = [pose("sort", **facts | {name: 9}) for name in facts]
    assert len({one, pose("reverse", **facts), *others}) == 6


def test_digits_are_uniformly_distributed():
    text = "".join(
        pose("sort", digits=8, seed=0, index=index, attempt=0)[0][:8] for index in range(2000)
    )
    counts = [text.count(str(digit)) for digit in range(10)]
    # Six standard deviations of a binomial distribution.
    assert max(abs(count - 1600) for count in counts) < 6 * (16_000 * 0.1 * 0.9) ** 0.5
