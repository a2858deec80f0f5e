"""`rampcli rl` checks and prints plans of reinforcement learning in prompts and pairs."""

import json
import re

import pytest

from rampcli import llm
from rampcli.cli.base import Base
from rampcli.cli.composing import compose_rl, compose_words
from rampcli.config import snapshot
from rampcli.config.compose import rl_word
from rampcli.config.layers import stack_of
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve
from rampcli.report.plan_json import plan_json
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import MANIFEST
from run_files import manifest
from tests.prompts import PROMPT_WORDS

TINY = ("--factory", "llama3_tiny")
RL = ("rl", *TINY, *PROMPT_WORDS)
BATCH = ("batch_size=8", "num_generations=4")


def composed(words):
    """Returns a small run of `rampcli rl`."""
    return compose_rl(Base(factory="llama3_tiny"), words)


@pytest.fixture
def pairs(json_of):
    """Returns the pairs of each stage that `rampcli rl --dry-run --json` prints."""

    def run(*words: str) -> list[dict[str, int]]:
        plan = json_of(*RL, *words, "--dry-run")
        return [stage["pairs"] for stage in plan["stages"]]

    return run


def test_the_words_of_maxtexts_documentation_set_the_batch(pairs):
    (typed,) = pairs(*BATCH, "micro_batch_size=8")
    (ours,) = pairs("rl.prompts_per_step=8", "rl.generations_per_prompt=4", "rl.micro_batch_size=8")
    assert typed == ours
    assert (typed["prompts"], typed["generations"], typed["pairs"]) == (8, 4, 32)
    assert (typed["micro_batch_size"], typed["accumulation"]) == (8, 2)


def test_the_words_of_maxtexts_documentation_set_the_batch_of_a_phase(json_of):
    words = ["trainer.max_steps=null", "phases.a.until=steps:2", "phases.b.until=steps:4"]
    words += [f"phases.b.{word}" for word in (*BATCH, "micro_batch_size=-1")]
    plan = json_of(*RL, "batch_size=16", "num_generations=2", *words, "--dry-run")
    batches = [stage["pairs"] for stage in plan["stages"]]
    assert [(one["prompts"], one["generations"]) for one in batches] == [(16, 2), (8, 4)]
    assert [phase["tokens"] for phase in plan["phases"]] == [None, None]
    with pytest.raises(UsageError) as refused:
        composed([*PROMPT_WORDS, *words[:-1], "phases.b.micro_batch_size=6"])
    assert str(refused.value.remedies[0]) == "phases.b.micro_batch_size=4 or 8"


def test_minus_one_takes_all_pairs_of_a_rank_at_once(pairs):
    (every,) = pairs(*BATCH, "micro_batch_size=-1")
    assert (every["micro_batch_size"], every["accumulation"]) == (16, 1)


def test_a_ramp_of_prompts_has_pairs_in_each_stage(pairs):
    stages = pairs("batch_size=24", "num_generations=4", "model.rampup_batch_size=[8,8,800]")
    assert [(stage["prompts"], stage["pairs"]) for stage in stages] == [(8, 32), (16, 64), (24, 96)]


def test_the_table_shows_prompts_pairs_and_the_whole_product(succeed):
    printed = succeed(*RL, *BATCH, "micro_batch_size=8", "--dry-run")
    header, row = (re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()[:2])
    shown = dict(zip(header, row, strict=False))
    columns = ("prompts", "pairs", "micro", "accum")
    assert [shown[name] for name in columns] == ["8", "32", "8", "2"]
    assert (
        "8 prompts x 4 generations = 32 pairs"
        " = 1 update x 2 micro batches of 8 pairs x 2 data-parallel ranks"
    ) in printed
    assert "800 prompts, 3,200 pairs, 100 steps" in printed


@pytest.mark.parametrize(
    ("words", "run_dir"),
    [
        ((), "runs/llama3_tiny_rl"),
        (("name=mine",), "runs/mine"),
        (("training.name=mine",), "runs/mine"),
        (("run_dir=there",), "there"),
    ],
)
def test_a_run_has_another_directory_than_pretraining_unless_it_is_given(words, run_dir):
    typed = [*PROMPT_WORDS, *words]
    assert str(composed(typed).run_dir) == run_dir
    # Other commands take the configuration of the same run.
    planned = compose_words(Base(factory="llama3_tiny"), ["rl=grpo", *typed])
    assert str(planned.run_dir) == run_dir


def test_python_composes_the_run_of_the_command():
    written = llm.sort_digits.rl_recipe(num_gpus_per_node=2)
    written.rl.temperature = 0.5
    typed = compose_rl(Base(factory="sort_digits(num_gpus_per_node=2)"), ["rl.temperature=0.5"])
    there, here = (snapshot.to_yaml(resolve(one).config) for one in (written, typed.config))
    assert there.replace("rl.temperature: Python", "rl.temperature: command line") == here


def test_python_may_name_a_reward_function_and_another_run(tmp_path):
    (tmp_path / "rewards.py").touch()
    config = llm.sort_digits.rl_recipe()
    config.rl.reward, config.name = f"{tmp_path}/rewards.py:score", "mine"
    resolved = resolve(config)
    assert (resolved.config.rl.reward, str(resolved.run_dir)) == (config.rl.reward, "runs/mine")


def test_a_file_that_the_user_chooses_names_the_run(tmp_path):
    (tmp_path / "rl").mkdir()
    (tmp_path / "rl" / "mine.yaml").write_text(
        "# @package _global_\nname: mine\nrl:\n  generations_per_prompt: 4\n", encoding="utf-8"
    )
    words = [*PROMPT_WORDS, "rl=mine", "data.micro_batch_size=null", "rl.prompts_per_step=16"]
    resolved = compose_rl(Base(factory="llama3_tiny", config_dir=tmp_path), words)
    assert str(resolved.run_dir) == "runs/mine"


def test_what_the_command_sets_is_attributed_to_it_and_gives_way_to_typed_words():
    resolved = composed(PROMPT_WORDS)
    assert stack_of(resolved.config).entry("name").place == "rampcli rl"
    assert stack_of(resolved.config).entry("rl.generations_per_prompt").place.startswith("rl/grpo")


def test_a_recipe_with_an_option_of_its_own_gets_it(tmp_path):
    option = tmp_path / "rl" / "llama3_tiny.yaml"
    option.parent.mkdir()
    option.write_text("generations_per_prompt: 2\nclip_high: 0.28\n", encoding="utf-8")
    assert rl_word("llama3_tiny", config_dir=tmp_path) == "rl=llama3_tiny"
    assert rl_word("llama3_tiny") == "rl=grpo"
    words = [
        *PROMPT_WORDS,
        "data.micro_batch_size=null",
        "trainer.accumulate_grad_batches=null",
        "rl.prompts_per_step=16",
    ]
    config = compose_rl(Base(factory="llama3_tiny(num_nodes=1)", config_dir=tmp_path), words).config
    assert (config.rl.generations_per_prompt, config.rl.clip_high) == (2, 0.28)


def test_a_ramp_of_prompts_resumes_at_its_checkpoint(tmp_path):
    run = RunDirectory(tmp_path / "run")
    folder = run.checkpoint_folder(100)
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps(manifest(step=100, consumed_samples=100)))
    words = [*PROMPT_WORDS, "batch_size=8", "model.rampup_batch_size=[1,7,100]"]
    words += ["rampup.node_policy=fixed", "trainer.max_steps=200"]
    resumed = composed([*words, f"run_dir={run.path}"])
    assert [stage.global_batch_size for stage in resumed.plan.stages] == [8]
    passed, coming = plan_json(resumed)["stages"]
    assert (passed["pairs"], coming["pairs"]["pairs"]) == (None, 128)
    with pytest.raises(UsageError, match="stage 0"):
        composed([*words, f"run_dir={tmp_path}/new"])


def test_notes_count_prompts():
    words = [*PROMPT_WORDS, "rl=grpo", "trainer.max_steps=null", "trainer.max_samples=60"]
    words += ["model.step_batch_size_schedule='samples: 0:16 32:8'", "rl.prompts_per_step=null"]
    notes = composed(words).plan.notes
    assert notes == (
        "the batch shrinks, as scheduled: 16 to 8 after 32 prompts",
        "a run ends with a whole step: 64 prompts, not trainer.max_samples=60",
    )


def test_a_step_schedule_in_steps_counts_steps_of_reinforcement_learning_too():
    words = [*PROMPT_WORDS, "rl=grpo", "trainer.max_steps=5", "rl.prompts_per_step=null"]
    words += ["model.step_batch_size_schedule='steps: 0:16 3:8'"]
    plan = composed(words).plan
    assert [(stage.global_batch_size, stage.steps) for stage in plan.stages] == [(16, 3), (8, 2)]


def test_dialects_print_the_batch_of_four_systems(succeed, json_of):
    printed = succeed(*RL, *BATCH, "--dialects")
    names = ["MaxText", "TRL", "verl", "NeMo-RL"]
    assert re.findall(r"^# (\S.*)$", printed, flags=re.MULTILINE) == names
    said = json_of(*RL, *BATCH, "--dialects")
    assert list(said) == names
    assert "actor_rollout_ref.rollout.n=4" in said["verl"]["words"]
    assert all(" ".join(one["words"]) in printed for one in said.values())


def test_cfg_prints_settings_and_where_they_come_from(succeed):
    printed = succeed(*RL, *BATCH, "--cfg")
    assert re.search(r"^name: llama3_tiny_rl +# rampcli rl;", printed, flags=re.MULTILINE)
    assert re.search(r"^ +generations_per_prompt: 4 +# command line;", printed, flags=re.MULTILINE)


def test_prompts_are_compared_with_their_pairs(succeed):
    words = ("plan", *TINY, "rl=grpo", *PROMPT_WORDS, "--what-if", "rl.micro_batch_size=16,32,100")
    header, *rows = (re.split(r"\s{2,}", line) for line in succeed(*words).splitlines())
    assert {"batch", "samples", "tokens"}.isdisjoint(header)
    shown = [dict(zip(header, row, strict=True)) for row in rows[:2]]
    columns = ("prompts", "pairs", "micro", "accum", "in all")
    assert [[one[name] for name in columns] for one in shown] == [
        ["32", "512", "16", "16", "3,200"],
        ["32", "512", "32", "8", "3,200"],
    ]


def test_a_plan_is_drawn_and_timed_in_prompts(succeed, tmp_path):
    words = ("plan", *TINY, "rl=grpo", *PROMPT_WORDS, "throughput.samples_per_s_per_gpu=2")
    picture = tmp_path / "plan.svg"
    assert "2 prompts/s per GPU, as declared" in succeed(*words, "--plot", str(picture))
    drawn = picture.read_text(encoding="utf-8")
    assert ("consumed prompts" in drawn, "samples" in drawn) == (True, False)


def test_words_of_rl_are_completed(succeed):
    complete = ("__complete", "rl", *TINY)
    assert succeed(*complete, "b").split() == ["batch_size=", "batch="]
    assert succeed(*complete, "num").split() == ["num_generations="]
    assert succeed(*complete, "micro_batch_size=").split() == ["micro_batch_size=-1"]
    assert succeed(*complete, "rl.u").split() == ["rl.updates_per_rollout="]
    assert succeed(*complete, "rl=").split() == ["rl=grpo", "rl=none", "rl=sort_digits"]
    assert "batch_size=" not in succeed("__complete", "pretrain", *TINY, "").split()
