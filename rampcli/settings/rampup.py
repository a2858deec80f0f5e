"""Settings for dividing a run into stages."""

from typing import Literal

from rampcli.batch.node_policies import DEFAULT_POLICY, NODE_POLICIES
from rampcli.batch.ramp import SEMANTICS
from rampcli.settings.attributes import Section
from rampcli.settings.facts import NOTHING, SAMPLES, SPLIT, any_phase, whole_run
from rampcli.settings.fields import Keyed, keyed, setting, settings_class


@keyed("rampup.")
@settings_class(kw_only=True)
class RampupConfig(Section):
    """How a ramp is read, and what happens between its stages."""

    semantics: Keyed[str] = setting(
        "megatron",
        "System whose rule turns `model.rampup_batch_size` into batch sizes.",
        any_phase(SAMPLES),
        choices=SEMANTICS,
    )
    at_boundary: Keyed[Literal["restart", "continue"]] = setting(
        "restart",
        "What happens between stages. `restart`: new processes start. `continue`: the same"
        " processes carry on if their number stays the same.",
        whole_run(NOTHING),
        former={"stop": "restart"},
    )
    node_policy: Keyed[str] = setting(
        DEFAULT_POLICY,
        "How the number of nodes of each batch size is chosen. `nemo`: as NeMo's launcher does."
        " `best`: in the least time. `fixed`: always `trainer.num_nodes`.",
        any_phase(SPLIT),
        choices=NODE_POLICIES,
    )
    nodes: Keyed[list[int] | None] = setting(
        None,
        "Number of nodes of each stage, in order, in place of `rampup.node_policy`. `null`: the"
        " policy chooses them.",
        any_phase(SPLIT),
        unit="nodes",
    )
    decrease_batch_size_if_needed: Keyed[bool] = setting(
        False,
        "Round a batch size that fits no number of nodes down to whole micro batches on every"
        " rank, instead of refusing it.",
        any_phase(SAMPLES),
    )
    micro_batch: Keyed[Literal["fixed", "largest"]] = setting(
        "fixed",
        "Micro batch of each batch size. `fixed`: `data.micro_batch_size`. `largest`: the largest"
        " one up to `data.micro_batch_size` that divides the batch on its nodes.",
        any_phase(SPLIT),
    )
    efficiency: Keyed[str | None] = setting(
        None,
        "Measured throughput of one GPU by micro batch size and micro batches per rank and step,"
        " `'1x1:9000 1x4:11500 8x1:14000'`; or by the latter alone, `'1:9000 4:11500'`, for one"
        " micro batch size. `null`: the same for all.",
        any_phase(NOTHING).unread_by_rl(": it is a throughput of pretraining"),
        unit="micro batch size x micro batches : tokens/s",
        example="1:9000 4:11500",
    )
    restart_s: Keyed[float] = setting(
        60.0,
        "Time to start the processes of a stage, for `best` and for the hours in a plan.",
        whole_run(NOTHING),
        unit="seconds",
        at_least=0,
    )
