"""The pretended devices notice faults that a real GPU would have: each is planted once.

A fault is noticed if the run fails with words that name it, or if losses or checkpoints differ from
those of a run without it.
"""

from pathlib import Path

import pytest

from gpu_rehearsal.planting import PLANTED, Fault, run_faults
from gpu_rehearsal.rehearsal import SMALL, on_devices
from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.run import describe
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory

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
        "models/rotary.py",
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
        "return part.to(device, non_blocking=True)",
        'return globals().setdefault("_pinned", part.contiguous().pin_memory()).copy_(part)'
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
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    faults = {"": (None, "", "", DIFFERS)} | FAULTS
    runs = []
    for index, (file, old, new, _) in enumerate(faults.values()):
        run = folder / str(index)
        _describe(run)
        runs.append(Fault(run_dir=str(run), processes=2, file=file, old=old, new=new))
    environment = on_devices(2, late=True)
    found = run_faults(runs, environment, Path(__file__).parents[1])
    return dict(zip(faults, found, strict=True))


def _describe(run: Path) -> None:
    run.mkdir()
    words = (
        *("trainer.num_nodes=2", "trainer.accelerator=gpu", f"run_dir={run}"),
        *("checkpoint.every_steps=1", "checkpoint.async=true"),
    )
    config = apply_overrides(llm.from_factory("llama3_tiny"), [*SMALL, *words])
    describe(RunDirectory(run), resolve(config), [])


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_noticed(outcomes, name):
    file, _, _, words = FAULTS[name]
    sound, faulty = outcomes[""], outcomes[name]
    assert not sound.has_failed, sound.log
    assert f"{PLANTED} {file}" in faulty.log, faulty.log
    if words is DIFFERS:
        assert faulty.result != sound.result
    else:
        assert faulty.has_failed
        assert words in faulty.log
