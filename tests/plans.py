"""Fleets of nodes, the nodes that policies choose on them, and training plans, for tests."""

from hypothesis import strategies as st

from rampcli.batch.micro_batch import MicroBatchRule
from rampcli.batch.node_policies import NODE_POLICIES, Workload
from rampcli.batch.nodes import Fleet
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.position import Goal
from rampcli.batch.ramp import RampSchedule
from rampcli.batch.run_settings import BatchSettings
from rampcli.batch.throughput import Clock, Throughput, Work
from rampcli.batch.training_plan import plan_training

MICRO = st.sampled_from([1, 2, 3, 4])
PARALLEL = st.builds(
    ParallelSizes,
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2]),
    context=st.sampled_from([1, 2]),
)
FLEETS = st.builds(
    Fleet, num_nodes=st.integers(1, 20), devices=st.sampled_from([1, 2, 3, 4, 8]), parallel=PARALLEL
)
EVEN = Clock(
    throughput=Throughput.constant(1000.0, basis="a test"),
    sequence_length=100,
    restart_s=0.0,
    restarts_always=True,
)
DECREASE = "rampup.decrease_batch_size_if_needed"
LENGTHS = ("max_steps", "max_samples", "max_tokens")
MEASURED = Throughput(points={(1, 1): 900.0, (1, 4): 1000.0}, basis="a test")

COUNTS = ["stage", "global_batch_size", "first_sample", "samples", "first_step", "steps"]
OF_A_FLEET = [
    "num_nodes",
    "world_size",
    "data_parallel_size",
    "micro_batch_size",
    "accumulate_grad_batches",
]
"""Keys of a stage in the JSON of a plan: of the run, and of its nodes."""


def ends_of(**length):
    """Returns the end that `max_steps`, `max_samples` or `max_tokens` gives a run."""
    given = {name: count for name, count in length.items() if count is not None}
    return [Goal(name.removeprefix("max_"), count) for name, count in given.items()]


def fleet_of(num_nodes, devices, **parallel):
    return Fleet(num_nodes=num_nodes, devices=devices, parallel=ParallelSizes(**parallel))


def works_of(sizes, samples=10**9):
    return [Work(global_batch_size=size, samples=samples) for size in sizes]


def chosen(policy, works, *, micro, fleet, clock=EVEN, varies=False):
    sizes = sorted({work.global_batch_size for work in works})
    workload = Workload(
        works=works,
        sizes=sizes,
        micro_batch_rule=MicroBatchRule(size=micro, varies=varies, parallel=fleet.parallel),
        fleet=fleet,
        clock=clock,
    )
    return NODE_POLICIES[policy].choose(workload)


def divides(size, nodes, *, micro, fleet):
    """Returns whether a batch splits into whole micro batches on `nodes` nodes."""
    ranks, rest = divmod(nodes * fleet.devices, fleet.parallel.model_parallel_size)
    return rest == 0 and size % (micro * ranks) == 0


def nemo_by_the_rule(sizes, micro, fleet):
    """Follows the launcher's loop. Where it crashes, a size has no nodes."""
    by_size, most = {sizes[-1]: fleet.num_nodes}, fleet.num_nodes
    for size in sizes[-2::-1]:
        by_size[size] = None
        for n in range(1, most + 1):
            ranks = fleet.devices * n // (fleet.parallel.tensor * fleet.parallel.pipeline)
            if (
                ranks > 0
                and size % (micro * ranks) == 0
                and size % (micro * fleet.devices * n) == 0
            ):
                by_size[size] = n
        most = by_size[size] or most
    return {size: by_size[size] for size in sizes}


def plan(
    rampup,
    target,
    *,
    fleet,
    micro=1,
    accumulate=None,
    policy="nemo",
    sequence_length=10,
    schedule=None,
    **rest,
):
    """Returns a plan; `rest` is its length, ramp and other arguments of `plan_training`."""
    length = {key: rest.pop(key) for key in LENGTHS if key in rest}
    ramp = {
        key: rest.pop(key)
        for key in ("semantics", "decrease_batch_size_if_needed", "micro_batch_rule")
        if key in rest
    }
    return plan_training(
        batch=BatchSettings(
            global_batch_size=target,
            micro_batch_size=micro,
            accumulate_grad_batches=accumulate,
            rampup_batch_size=rampup,
            step_batch_size_schedule=schedule,
            **ramp,
        ),
        fleet=fleet,
        node_policy=policy,
        sequence_length=sequence_length,
        ends=ends_of(**length),
        **rest,
    )


def scheduled(text, *, fleet, target=None, **rest):
    return plan(None, target, schedule=text, fleet=fleet, **rest)


def sizes_and_nodes(planned):
    return [(stage.global_batch_size, stage.num_nodes) for stage in planned.stages]


@st.composite
def runs(draw):
    """Arguments of `plan` for a ramp that divides on its nodes, and an end."""
    fleet = fleet_of(
        draw(st.integers(1, 4)),
        draw(st.sampled_from([1, 2, 4])),
        tensor=draw(st.sampled_from([1, 2])),
    )
    if fleet.devices % fleet.parallel.tensor:
        fleet = fleet_of(fleet.num_nodes, fleet.devices)
    micro = draw(st.integers(1, 3))
    unit = micro * fleet.devices * fleet.num_nodes
    start, increment, increments = (
        unit * draw(st.integers(1, 3)),
        unit * draw(st.integers(1, 2)),
        draw(st.integers(1, 5)),
    )
    end = draw(st.sampled_from(LENGTHS))
    return {
        "rampup": [start, increment, draw(st.integers(0, 60)) * unit],
        "target": start + increment * increments,
        "fleet": fleet,
        "micro": micro,
        "policy": draw(st.sampled_from(["nemo", "best", "fixed"])),
        "semantics": draw(st.sampled_from(["megatron", "maxtext"])),
        "throughput": draw(st.sampled_from([None, MEASURED])),
        "restart_s": draw(st.sampled_from([0.0, 0.5, 60.0])),
        "restarts_always": draw(st.booleans()),
        end: draw(st.integers(1, 60))
        * {"max_steps": 1, "max_samples": unit, "max_tokens": 10 * unit}[end]
        + draw(st.integers(0, 3)),
    }


def ramp_of(run):
    return RampSchedule.from_rampup(
        run["rampup"],
        global_batch_size=run["target"],
        semantics=run.get("semantics", "megatron"),
    )
