"""Plans in the words of other systems, for tests."""

import shlex

from hypothesis import strategies as st

from plans import ends_of, fleet_of
from rampcli.batch.ramp import RampSchedule
from rampcli.batch.run_settings import BatchSettings
from rampcli.batch.training_plan import plan_training
from rampcli.words import translate_plan
from rampcli.words.translation import Source

SEQUENCE_LENGTH = 10


def plan(
    rampup,
    target,
    *,
    fleet,
    micro,
    policy="nemo",
    nodes=None,
    semantics="megatron",
    schedule=None,
    decrease=False,
    micro_batch_rule="fixed",
    **length,
):
    return plan_training(
        batch=BatchSettings(
            global_batch_size=target,
            micro_batch_size=micro,
            rampup_batch_size=rampup,
            step_batch_size_schedule=schedule,
            semantics=semantics,
            decrease_batch_size_if_needed=decrease,
            micro_batch_rule=micro_batch_rule,
        ),
        fleet=fleet,
        node_policy=policy,
        nodes=nodes,
        sequence_length=SEQUENCE_LENGTH,
        ends=ends_of(**length),
    )


@st.composite
def runs(draw, devices=(1, 2, 4, 8)):
    """Arguments of `plan`: a batch with or without a ramp. A run that ends reaches its target."""
    parallel = draw(
        st.sampled_from([{}, {"tensor": 2}, {"tensor": 2, "pipeline": 2}, {"context": 2}])
    )
    model = 2 ** (len(parallel) if "context" not in parallel else 1)
    fleet = fleet_of(
        draw(st.sampled_from([1, 2, 4])), model * draw(st.sampled_from(devices)), **parallel
    )
    micro = draw(st.integers(1, 4))
    unit = micro * fleet.devices * fleet.num_nodes
    start, increment, increments = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
        draw(st.integers(0, 4)),
    )
    run = {
        "rampup": [unit * start, unit * increment, draw(st.integers(1, 60)) * unit]
        if increments
        else None,
        "target": unit * (start + increment * increments),
        "fleet": fleet,
        "micro": micro,
        "policy": draw(st.sampled_from(["nemo", "fixed"])),
        "semantics": draw(st.sampled_from(["megatron", "maxtext"])),
    }
    at_target = draw(st.none() | st.integers(1, 50))
    return (
        run
        if at_target is None
        else run | {"max_steps": ramp_of(run).stages[-1].first_step + at_target}
    )


def ramp_of(run):
    return RampSchedule.from_rampup(
        run["rampup"], global_batch_size=run["target"], semantics=run["semantics"]
    )


def said(run, system, **settings):
    source = Source(
        plan=plan(**run).phases[0],
        rampup_batch_size=run["rampup"],
        step_batch_size_schedule=run.get("schedule"),
        **settings,
    )
    dialect = translate_plan(source)[system]
    assert shlex.split(str(dialect)) == list(dialect.words)
    return dialect


def assignments(dialect):
    return dict(word.split("=", 1) for word in dialect.words)


def flags(dialect):
    """Returns the words after each of Megatron-LM's arguments."""
    found = {}
    for word in dialect.words:
        if word.startswith("--"):
            name = word.removeprefix("--")
            assert name not in found
            found[name] = []
        else:
            found[name].append(word)
    return found
