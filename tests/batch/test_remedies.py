import re
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from plans import divides, fleet_of, nemo_by_the_rule, plan
from rampcli.batch.layout import Layout
from rampcli.batch.micro_batch import MicroBatchRule
from rampcli.batch.node_policies import NODE_POLICIES
from rampcli.batch.ramp import MOST_SIZES, RampSchedule
from rampcli.errors import UsageError, UsageErrors

REFUSED = re.compile(r"batch(es)? \d+ \(stage \d+\)")
SHOWN = re.compile(r"(\d+) \(stage (\d+)\)")
NO_SMALL_CHANGE = re.compile(r"batch sizes that are multiples of (\d+)")


def stages_in(refusal):
    """Returns the number and the batch size of each stage that a refusal names."""
    return [(int(number), int(size)) for size, number in SHOWN.findall(refusal.message)]


def refusal_of_stages(**run):
    """Returns the refusal of a ramp's stages, also beside that of its target, or None."""
    try:
        plan(**run)
    except UsageErrors as several:
        return next((error for error in several.errors if REFUSED.match(error.message)), None)
    except UsageError as error:
        return error if REFUSED.match(error.message) else None
    return None


def ramp_of(run):
    return RampSchedule.from_rampup(run["rampup"], global_batch_size=run["target"])


def changes(refusal):
    """Yields each suggestion of a refusal: its kind, and a function that applies it to a run."""
    for offer in refusal.remedies:
        if isinstance(offer, str):
            assert NO_SMALL_CHANGE.fullmatch(offer), offer
            continue
        (key, (value,)) = next(iter(offer.values.items()))
        kind, change = {
            "data.micro_batch_size": ("micro", lambda _, size: {"micro": size}),
            "model.rampup_batch_size": ("increment", lambda _, ramp: {"rampup": ramp}),
            "trainer.num_nodes": (
                "nodes",
                lambda run, nodes: {"fleet": replace(run["fleet"], num_nodes=nodes)},
            ),
            "rampup.node_policy": ("policy", lambda _, name: {"policy": name}),
        }[key]
        yield kind, lambda run, change=change, value=value: run | change(run, value)


def changed(run):
    """Returns the runs that the refusal of a run's stages suggests, by what they change."""
    refusal = refusal_of_stages(**run)
    assume(refusal is not None)
    return {kind: change(run) for kind, change in changes(refusal)}


@st.composite
def runs(draw):
    """Arguments of `plan`: any ramp, or one whose start and target divide."""
    fleet = fleet_of(
        draw(st.integers(1, 6)),
        draw(st.sampled_from([1, 2, 4])),
        tensor=draw(st.sampled_from([1, 1, 2])),
    )
    micro = draw(st.integers(1, 8))
    if draw(st.booleans()):
        unit = draw(st.sampled_from([1, 2, 4, 8]))
        start, increment = unit * draw(st.integers(1, 12)), unit * draw(st.integers(1, 6))
        target = start + increment * draw(st.integers(1, 6))
    else:
        unit = micro * fleet.devices * draw(st.sampled_from([1, fleet.num_nodes]))
        start, rise = unit * draw(st.integers(1, 3)), unit * draw(st.integers(1, 4))
        target = start + rise
        increment = draw(st.sampled_from([size for size in range(1, rise + 1) if rise % size == 0]))
    return {
        "rampup": [start, increment, draw(st.integers(0, 5000))],
        "target": target,
        "micro": micro,
        "fleet": fleet,
        "policy": draw(st.sampled_from(["nemo", "best", "fixed"])),
    }


NEMO_BUT_NOT_FIXED = {
    "rampup": [4, 4, 100],
    "target": 16,
    "micro": 1,
    "fleet": fleet_of(4, 2),
    "policy": "fixed",
}
AWKWARD = {
    "rampup": [352, 96, 10_000],
    "target": 640,
    "micro": 4,
    "fleet": fleet_of(16, 8),
    "policy": "nemo",
}
OVER_NO_SAMPLES = {
    "rampup": [1, 1, 0],
    "target": 3,
    "micro": 2,
    "fleet": fleet_of(1, 1),
    "policy": "best",
}


@given(run=runs())
@example(run=NEMO_BUT_NOT_FIXED)
@example(run=AWKWARD)
def test_every_suggested_change_makes_all_stages_fit(run):
    for kind, mended in changed(run).items():
        assert plan(**mended).stages, kind


@given(run=runs())
@example(run=NEMO_BUT_NOT_FIXED)
@example(run=AWKWARD)
def test_the_suggested_micro_batch_is_the_largest_smaller_one_that_works(run):
    offered = changed(run).get("micro", {"micro": None})["micro"]
    sizes = ramp_of(run).scheduled_sizes()
    working = [
        micro
        for micro in range(1, run["micro"])
        if all(NODES[run["policy"]](size, sizes, micro, run["fleet"]) for size in sizes)
    ]
    assert offered == max(working, default=None)


@given(run=runs())
@example(run=NEMO_BUT_NOT_FIXED)
def test_the_suggested_increment_is_the_nearest_whose_every_size_fits(run):
    mended = changed(run)
    start, increment, samples = run["rampup"]
    rise = run["target"] - start
    if "increment" in mended:
        assert (mended["increment"]["rampup"][0], mended["increment"]["rampup"][2]) == (
            start,
            samples,
        )
        distance = abs(mended["increment"]["rampup"][1] - increment)
        nearer = [
            other
            for other in range(1, rise + 1)
            if rise % other == 0 and 0 < abs(other - increment) < distance
        ]
    else:
        nearer = [other for other in range(1, rise + 1) if rise % other == 0 and other != increment]
    for other in nearer:
        sizes = list(range(start, run["target"] + 1, other))
        assert not all(
            NODES[run["policy"]](size, sizes, run["micro"], run["fleet"]) for size in sizes
        )


def best_has_nodes(size, sizes, micro, fleet):  # noqa: ARG001
    return any(divides(size, n, micro=micro, fleet=fleet) for n in range(1, fleet.num_nodes + 1))


def fixed_has_nodes(size, sizes, micro, fleet):  # noqa: ARG001
    return divides(size, fleet.num_nodes, micro=micro, fleet=fleet)


def nemo_has_nodes(size, sizes, micro, fleet):
    found = nemo_by_the_rule(sizes, micro, fleet)[size]
    return found is not None and divides(size, found, micro=micro, fleet=fleet)


NODES = {"nemo": nemo_has_nodes, "best": best_has_nodes, "fixed": fixed_has_nodes}


@given(run=runs())
def test_if_no_small_change_helps_the_batch_sizes_that_work_are_named(run):
    refusal = refusal_of_stages(**run)
    assume(refusal is not None)
    # NeMo's launcher has a stricter condition if the model is split.
    if NO_SMALL_CHANGE.fullmatch(refusal.remedy) and (
        run["policy"] != "nemo" or run["fleet"].parallel.model_parallel_size == 1
    ):
        unit = int(NO_SMALL_CHANGE.fullmatch(refusal.remedy)[1])
        units = [unit * count for count in (1, 2, 3, 5)]
        assert all(
            NODES[run["policy"]](
                size, [*units, 5 * unit * run["fleet"].num_nodes], run["micro"], run["fleet"]
            )
            for size in units
        )


@given(run=runs())
@example(run=NEMO_BUT_NOT_FIXED)
@example(run=AWKWARD)
@example(run=OVER_NO_SAMPLES)
def test_a_refusal_names_the_stages_that_do_not_fit_with_their_batch_sizes(run):
    refusal = refusal_of_stages(**run)
    stages, sizes = ramp_of(run).stages, ramp_of(run).scheduled_sizes()
    wrong = [
        (number, stage.global_batch_size)
        for number, stage in enumerate(stages)
        if not NODES[run["policy"]](stage.global_batch_size, sizes, run["micro"], run["fleet"])
    ]
    if run["policy"] != "best":  # The other policies refuse the target by itself.
        wrong = [(number, size) for number, size in wrong if size != run["target"]]
    if run["fleet"].num_nodes * run["fleet"].devices % run["fleet"].parallel.model_parallel_size:
        # The fleet does not hold the model, so nothing else is checked.
        assert refusal is None
    elif not wrong:
        assert refusal is None
    elif len(sizes) == 1:  # Over no samples there is no ramp, so the target is refused.
        with pytest.raises(UsageError, match=f"model.global_batch_size={sizes[0]} (is|does) not"):
            plan(**run)
    else:
        assert stages_in(refusal) == wrong[:5]
        assert (f"and {len(wrong) - 5} more" in refusal.message) == (len(wrong) > 5)
        assert refusal.keys == (
            "model.rampup_batch_size",
            "data.micro_batch_size",
            "rampup.node_policy",
            "trainer.num_nodes",
            "trainer.devices",
        )


def test_a_refusal_under_fixed_shows_the_product_and_the_remedies():
    refusal = refusal_of_stages(**NEMO_BUT_NOT_FIXED)
    assert refusal.message == (
        "batches 4 (stage 0) and 12 (stage 2) are not multiples of 8"
        " = 1 sample per micro batch x 8 data-parallel ranks on 4 nodes"
    )
    assert refusal.remedy == "trainer.num_nodes=2, or rampup.node_policy=nemo"


def test_a_refusal_under_another_policy_shows_the_fleet_and_the_remedies():
    refusal = refusal_of_stages(
        rampup=[12, 6, 100], target=24, micro=4, fleet=fleet_of(1, 2), policy="nemo"
    )
    assert refusal.message == (
        "batches 12 (stage 0) and 18 (stage 1) are not multiples of 8"
        " = 4 samples per micro batch x 2 processes on 1 node"
    )
    assert refusal.remedy == "data.micro_batch_size=3"


def test_an_increment_is_suggested_as_one_quoted_shell_word():
    refusal = refusal_of_stages(
        rampup=[8, 4, 100], target=16, micro=1, fleet=fleet_of(1, 8), policy="fixed"
    )
    assert refusal.remedy == "'model.rampup_batch_size=[8,8,100]'"


def test_stages_of_a_step_schedule_are_refused_with_the_changes_that_a_schedule_can_take():
    with pytest.raises(UsageError) as refusal:
        plan(None, None, schedule="0:6 240:16", micro=2, fleet=fleet_of(2, 1), policy="fixed")
    assert (
        refusal.value.remedy
        == "data.micro_batch_size=1, or trainer.num_nodes=1, or rampup.node_policy=nemo"
    )


def test_no_number_of_nodes_that_cannot_hold_the_model_is_suggested_beside_an_accumulation():
    refusal = refusal_of_stages(
        rampup=[3, 13, 100],
        target=16,
        micro=1,
        accumulate=8,
        fleet=fleet_of(4, 1, tensor=2),
        policy="fixed",
    )
    assert stages_in(refusal) == [(0, 3)]
    assert "trainer.num_nodes" not in refusal.remedy


def test_at_most_five_wrong_stages_are_shown():
    refusal = refusal_of_stages(
        rampup=[1, 2, 10**6], target=25, micro=1, fleet=fleet_of(1, 2), policy="best"
    )
    assert stages_in(refusal) == [(0, 1), (1, 3), (2, 5), (3, 7), (4, 9)]
    assert "9 (stage 4) and 8 more are not multiples" in refusal.message


def test_a_ramp_of_the_most_sizes_still_gets_the_remedies_that_are_cheap_to_find():
    refusal = refusal_of_stages(
        rampup=[1, 1, 10**6], target=MOST_SIZES, micro=2, fleet=fleet_of(1, 1), policy="fixed"
    )
    assert refusal.remedy == "data.micro_batch_size=1"


def test_remedies_for_a_fleet_of_any_size_are_found_without_trying_every_number_of_nodes():
    refusal = refusal_of_stages(
        rampup=[8, 8, 100], target=16, micro=3, fleet=fleet_of(10**9, 1), policy="best"
    )
    assert refusal.remedy == "data.micro_batch_size=2"


@given(run=runs())
def test_a_layout_fits_exactly_if_every_batch_size_has_nodes(run):
    layout = Layout(
        ramp=run["rampup"],
        micro_batch_rule=MicroBatchRule(size=run["micro"], parallel=run["fleet"].parallel),
        fleet=run["fleet"],
        policy=NODE_POLICIES[run["policy"]],
    )
    sizes = list(range(run["rampup"][0], run["target"] + 1, run["rampup"][1]))
    has_nodes = [NODES[run["policy"]](size, sizes, run["micro"], run["fleet"]) for size in sizes]
    assert [nodes is not None for nodes in layout.nodes(sizes)] == has_nodes
    assert layout.fits(sizes) == all(has_nodes)
