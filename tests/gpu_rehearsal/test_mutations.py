"""The pretended devices notice faults that a real GPU would have: each is planted once.

A fault is noticed if the run fails with words that name it, or if losses or checkpoints differ from
those of a run without it.
"""

import pytest

from gpu_rehearsal.planting import PLANTED, Fault, Outcome, run_with
from tiny_runs import Run

# Four steps on two ranks, with validations, and checkpoints that are written in the background. An
# audit of the order would make the host wait for the GPU, which hides missing waits.
WORDS = (
    *("trainer.num_nodes=2", "trainer.accelerator=gpu", "model.rampup_batch_size=null"),
    *("trainer.max_samples=32", "trainer.val_samples=4", "trainer.val_every_steps=2"),
    *("checkpoint.every_steps=1", "checkpoint.async=true", "data.audit_order=false"),
)
DIFFERS = None
# File, text, text in its place, and words of the error or DIFFERS.
FAULTS = {
    "a host tensor in a collective": (
        "train/passes.py",
        "totals = numbers.double()",
        "totals = numbers.double().cpu()",
        "No backend type associated with device type cpu",
    ),
    "a table left on the host": (
        "models/attention.py",
        "return self.table[",
        "return self.table.cpu()[",
        "on the same device",
    ),
    "a device tensor taken for NumPy's": (
        "train/passes.py",
        "sums: list[float] = totals.tolist()",
        "sums: list[float] = totals.numpy().tolist()",
        "can't convert cuda",
    ),
    "memory that is never set": (
        "train/step.py",
        "total = torch.zeros((), dtype=torch.float64, device=device)",
        "total = torch.empty((), dtype=torch.float64, device=device)",
        DIFFERS,
    ),
    "no device chosen": (
        "parallel/ranks.py",
        "        torch.cuda.set_device(device)\n",
        "        pass\n",
        "torch.cuda.set_device was not called",
    ),
    "a checkpoint that is written before its copy is complete": (
        "checkpoint/shards.py",
        "            stream.synchronize()\n",
        "",
        DIFFERS,
    ),
    "a checkpoint that is copied before the weights are computed": (
        "checkpoint/shards.py",
        "                stream.wait_event(computed)\n",
        "",
        "may still write: nothing has waited for it",
    ),
    "a pinned buffer used again before its copy is complete": (
        "data/loader.py",
        "part.to(device, non_blocking=True)",
        'globals().setdefault("_pinned", part.contiguous().pin_memory()).copy_(part)'
        ".to(device, non_blocking=True)",
        DIFFERS,
    ),
    "numbers of a step that are read before they have arrived": (
        "train/step.py",
        "                self._arrived.synchronize()\n",
        "                pass\n",
        DIFFERS,
    ),
    "a gradient reduced twice": (
        "train/step.py",
        "    norm = squared_norm(passes.parts, device=passes.device)\n",
        "    for gradient in local_gradients(passes.parts, copies=True):\n"
        "        torch.distributed.all_reduce(gradient)\n"
        "    norm = squared_norm(passes.parts, device=passes.device)\n",
        DIFFERS,
    ),
    "a gradient that is not reduced": (
        "parallel/fsdp.py",
        "model.set_requires_gradient_sync(last_micro_batch or each)",
        "model.set_requires_gradient_sync(False)",
        DIFFERS,
    ),
    "a sum over the wrong group": (
        "train/passes.py",
        "dist.all_reduce(totals)",
        'dist.all_reduce(totals, group=self.meshes.data.get_group("tensor"))',
        DIFFERS,
    ),
}


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory):
    """Trains with the fault of a name, or without one."""

    def outcome(name: str | None) -> Outcome:
        file, old, new, _ = (None, "", "", DIFFERS) if name is None else FAULTS[name]
        run = Run(tmp_path_factory.mktemp("fault") / "run")
        run.describe(*WORDS)
        return run_with(Fault(file=file, old=old, new=new), run.path, processes=2)

    return outcome


@pytest.fixture(scope="module")
def sound(outcome_of):
    """The outcome without a fault."""
    return outcome_of(None)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(sound, outcome_of, name):
    file, _, _, words = FAULTS[name]
    assert not sound.has_failed, sound.log
    faulty = outcome_of(name)
    assert f"{PLANTED} {file}" in faulty.log, faulty.log
    if words is DIFFERS:
        assert faulty.result != sound.result
    else:
        assert faulty.has_failed
        assert words in faulty.log
