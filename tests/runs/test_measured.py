import json

import pytest

from rampcli.config import snapshot
from rampcli.errors import DamagedFileError, UsageError
from rampcli.files.guarded_folder import replace_file
from rampcli.runs.directory import TUNE_FOLDER, RunDirectory
from rampcli.runs.measured import TUNE_FILE, WARM_UP_STEPS, read_measured
from run_files import metrics_row

SLOW = [1.0] * WARM_UP_STEPS


@pytest.fixture
def run(tmp_path, planned):
    """Returns a function that writes a run directory with given metrics, settings and events."""

    def write(rows, *words, name="earlier", events=(), tune=None):
        directory = RunDirectory(tmp_path / name)
        directory.path.mkdir()
        replace_file(directory.config, snapshot.to_yaml(planned("llama3_tiny", *words).config))
        for row in rows:
            directory.append_row(directory.metrics, row)
        for kind, facts in events:
            directory.append_event(kind, **facts)
        if tune is not None:
            (directory.path / TUNE_FILE).write_text(json.dumps(tune))
            (directory.path / TUNE_FOLDER).mkdir()
            replace_file(
                RunDirectory(directory.path / TUNE_FOLDER).config, directory.config.read_text()
            )
        return directory.path

    return write


@pytest.fixture
def measured_by_phase(planned):
    """Returns a function that reads directories for the phases of a plan of llama3_tiny."""

    def read(*paths, words=()):
        phases = {one.plan.name: one.config for one in planned("llama3_tiny", *words).phases}
        return dict(zip(phases, read_measured(paths, phases), strict=True))

    return read


@pytest.fixture
def measured(measured_by_phase):
    """Returns a function that reads directories for a plan without phases."""
    return lambda *paths, words=(): measured_by_phase(*paths, words=words)[None]


def steps(rates, *, stage=0, world=1, accumulate=1, micro=4, model_ranks=1):
    return [
        metrics_row(
            stage=stage,
            world_size=world,
            accumulate_grad_batches=accumulate,
            global_batch_size=micro * accumulate * world // model_ranks,
            tokens_per_s=rate,
        )
        for rate in rates
    ]


def tune(*points, device_name="a GPU"):
    names = ("micro_batch_size", "accumulate_grad_batches", "tokens_per_s_per_gpu")
    return {
        "device": "cuda:0",
        "device_name": device_name,
        "points": [dict(zip(names, point, strict=True)) for point in points],
        "more": "facts",
    }


def start(device="cpu", **facts):
    return ("start", {"step": 0, "device": device, **facts})


def test_throughput_is_the_median_per_gpu_over_the_steps_after_the_first(run, measured):
    rows = [
        *steps([*SLOW, 1000.0, 3000.0, 2000.0]),
        *steps([*SLOW, 4000.0], stage=1, world=2, accumulate=3),
        *steps([*SLOW, 9000.0, 9000.0, 100.0], stage=2, world=1, accumulate=2, micro=8),
    ]
    assert measured(run(rows)).points == {(4, 1): 2000.0, (4, 3): 2000.0, (8, 2): 9000.0}


def test_the_micro_batch_is_one_of_a_data_parallel_rank(run, measured):
    words = ["trainer.devices=4", "data.micro_batch_size=1", "parallel.tensor_parallel_size=2"]
    rows = steps([*SLOW, 1000.0], world=4, accumulate=2, micro=3, model_ranks=2)
    assert measured(run(rows, *words), words=words).points == {(3, 2): 250.0}


def test_the_first_steps_of_every_set_of_processes_are_left_out(run, measured):
    rows = [
        *steps([*SLOW, 500.0]),
        *steps([*SLOW, 700.0], world=2),
        *steps(SLOW, stage=1, accumulate=2),
    ]
    assert measured(run(rows)).points == {(4, 1): 425.0}


def test_runs_and_tune_results_are_merged_by_the_median_of_each_point(run, measured):
    paths = [
        run(steps([*SLOW, 100.0]), name="one"),
        run(steps([*SLOW, 300.0]), name="two"),
        run([], name="tuned", tune=tune((4, 1, 200.0), (8, 1, 900.5), (8, 4, 950))),
    ]
    assert measured(*paths).points == {(4, 1): 200.0, (8, 1): 900.5, (8, 4): 950.0}
    assert measured(*reversed(paths)) == measured(*paths)


def test_a_restart_takes_the_median_of_the_boundaries_of_all_runs(run, measured):
    rows = steps([*SLOW, 100.0])
    assert measured(run(rows, name="none")).restart_s is None
    one = run(rows, name="one", events=[("boundary", {"lost_s": 4.0}), start()])
    two = run(rows, name="two", events=[("boundary", {"lost_s": s}) for s in (1.0, 2.5)])
    assert measured(one, two).restart_s == 2.5


@pytest.mark.parametrize("rows", [[], steps([500.0] * WARM_UP_STEPS)])
def test_a_run_that_is_too_short_has_no_throughput(run, measured, rows):
    path = run(rows)
    with pytest.raises(UsageError, match="no stage has more than 3 steps") as refused:
        measured(path)
    assert str(path) in refused.value.message


@pytest.mark.parametrize(
    "word",
    [
        "model.hidden_size=256",
        "model.num_layers=6",
        "model.num_query_groups=4",
        "model.activation=gelu",
        "model.sliding_window=32",
        "model.tie_embeddings=true",
        "data.sequence_length=64",
        "data.document_mask=true",
        "optim.optimizer=adamw",
        "optim.muon_iterations=3",
        "trainer.precision=bf16",
        "trainer.activation_checkpointing=full",
        "parallel.tensor_parallel_size=2",
        "parallel.context_parallel_size=2",
        "parallel.data_parallel_shard_size=1",
        "average.ema=1000000",
        "loss.z_weight=0.0001",
        "trainer.gradient_clip_val=null",
        "optim.skip_step_sigma=6.0",
    ],
)
def test_throughput_measured_with_other_computations_is_refused(run, measured, word):
    key, _, value = word.partition("=")
    fleet = ["trainer.devices=2", "data.micro_batch_size=1"]
    path = run(steps([500.0] * 5, world=2, micro=2), *fleet, word)
    with pytest.raises(UsageError, match=f"that run had {key}={value}") as refused:
        measured(path, words=fleet)
    assert refused.value.keys == (key,)
    assert measured(path, words=[*fleet, word]).points


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("trainer.accumulate_reduce=each", "trainer.accumulate_reduce=last"),
        ("trainer.compile=true", "trainer.compile=false"),
    ],
)
def test_what_the_plan_chooses_must_be_the_same_only_if_the_user_has_set_it(
    run, measured, word, other
):
    path = run(steps([500.0] * 5), word)
    with pytest.raises(UsageError, match=f"had {word}"):
        measured(path, words=[other])
    assert measured(path, words=[word]).unlike == ()
    found = measured(path)  # the plan has chosen the other value
    assert found.points
    assert found.unlike == (word,)


@pytest.mark.parametrize(
    "word",
    [
        "optim.lr=0.01",
        "model.init_std=0.01",
        "seed=5",
        "trainer.num_nodes=4",
        "model.global_batch_size=32",
        "data.micro_batch_size=2",
        "name=other",
    ],
)
def test_throughput_of_the_same_computations_is_used_although_other_settings_differ(
    run, measured, word
):
    assert measured(run(steps([500.0] * 5), word)).points == {(4, 1): 500.0}


def test_throughputs_of_different_devices_are_not_combined(run, measured):
    rows = steps([500.0] * 5)
    here = run(rows, name="here", events=[start(device_name="a GPU"), start(device_name="a GPU")])
    old = run(rows, name="old", events=[start(), ("start", {"step": 0})])
    tuned = run([], name="tuned", tune=tune((4, 1, 500.0)))
    other = run(rows, name="other", events=[start(device_name="another GPU")])
    assert measured(here, old, tuned).points == {(4, 1): 500.0}
    with pytest.raises(UsageError, match="different devices") as refused:
        measured(old, tuned, other)
    assert f"a GPU ({tuned}) and another GPU ({other})" in refused.value.message


@pytest.mark.parametrize(
    ("accelerator", "device", "refused"),
    [
        ("auto", "cuda:0", False),
        ("gpu", "cuda:0", False),
        ("cpu", "cuda:0", True),
        ("gpu", "cpu", True),
        ("cpu", "cpu", False),
        ("gpu", None, True),
    ],
)
def test_the_accelerator_must_be_the_one_that_was_measured_on(
    run, measured, accelerator, device, refused
):
    """Without a device in the events, it is the setting of the earlier run, here `cpu`."""
    events = [] if device is None else [start(device)]
    path = run(steps([500.0] * 5), "trainer.accelerator=cpu", events=events)
    if not refused:
        assert measured(path, words=[f"trainer.accelerator={accelerator}"]).points
        return
    with pytest.raises(UsageError, match="that run trained on the") as refusal:
        measured(path, words=[f"trainer.accelerator={accelerator}"])
    assert refusal.value.keys == ("trainer.accelerator",)


def test_a_folder_without_config_yaml_is_refused(run, measured):
    path = run(steps([500.0] * 5))
    (path / "config.yaml").unlink()
    with pytest.raises(UsageError, match="is not a run directory"):
        measured(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"device": None, "device_name": "x"}, "has no points"),
        (tune((0, 1, 5.0)), r"points\[0\].micro_batch_size is not"),
        (tune((1, 1, -5.0)), r"points\[0\].tokens_per_s_per_gpu is not"),
        (tune((1, 1, 5.0), device_name=3), "device_name is not"),
        ([], "is not a mapping"),
    ],
)
def test_a_damaged_tune_result_is_reported_by_its_field(run, measured, content, problem):
    with pytest.raises(DamagedFileError, match=problem):
        measured(run([], tune=content))


def test_a_row_whose_batch_is_not_whole_is_reported(run, measured):
    row = metrics_row(step=7, global_batch_size=5, accumulate_grad_batches=2)
    with pytest.raises(DamagedFileError, match="batch of 5 samples in step 7 does not divide"):
        measured(run([row]))


PHASES = [
    "phases.short.until=20_000",
    "phases.short.data.sequence_length=64",
    "phases.main.until=40_000",
    "phases.decay.until=50_000",
    "phases.decay.schedule.decay_style=linear",
]


@pytest.fixture
def phased(run, planned):
    """Returns the directory of a run with phases, in whose stages a step had `rates`."""

    def write(*words, rates):
        rows = [
            row for stage, rate in enumerate(rates) for row in steps([*SLOW, rate], stage=stage)
        ]
        path = run(rows, *PHASES, *words, name="phased")
        plan = planned("llama3_tiny", *PHASES, *words).plan
        RunDirectory(path).write_json(path / "plan.json", plan.to_json())
        return path

    return write


def test_each_phase_has_the_throughput_of_a_run_that_computed_as_it_does(
    run, phased, measured, measured_by_phase
):
    rates = [640.0, 1000.0, 3000.0]
    one_batch = [
        *("model.rampup_batch_size=null", "model.global_batch_size=4", "trainer.num_nodes=1")
    ]
    path = phased(*one_batch, rates=rates)
    assert measured(path, words=one_batch).points == {(4, 1): 2000.0}
    assert measured(path, words=one_batch).phases == {path: ("main", "decay")}
    found = measured_by_phase(path, words=[*one_batch, *PHASES])
    assert found["short"].phases == {path: ("short",)}
    assert [found[name].points for name in ("short", "main", "decay")] == [
        {(4, 1): 640.0},
        {(4, 1): 2000.0},
        {(4, 1): 2000.0},
    ]
    alone = run(steps([*SLOW, 700.0]), name="alone")
    found = measured_by_phase(alone, words=PHASES)
    assert (found["main"].points, found["short"].points) == ({(4, 1): 700.0}, {})
    assert found["short"].misfit == f"{alone} had data.sequence_length=128, and it has 64"


def test_a_run_that_no_phase_computes_as_is_refused(phased, measured_by_phase, run):
    words = ["phases.only.until=20_000", "phases.only.data.sequence_length=32"]
    alone = run(steps([*SLOW, 700.0]), name="alone")
    with pytest.raises(UsageError, match=r"that run had .*=128, and phase only of this one has 32"):
        measured_by_phase(alone, words=words)
    with pytest.raises(UsageError, match=r"phase short of that run had .*=64, and phase only"):
        measured_by_phase(phased(rates=[1.0]), words=words)
