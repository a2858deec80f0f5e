"""The exchange between data-parallel ranks can be switched off, and then on again."""

import pytest
import torch

from ranks import joined, run_ranks


def gradients_with_and_without(settings):
    """Returns how gradients compare: of a step before, without and after an exchange.

    The learning rate is 0, so that all steps compute with the same weights.
    """
    from rampcli import llm
    from rampcli.config.compose import apply_overrides
    from rampcli.data.loader import MicroBatch
    from rampcli.parallel.mesh import build_meshes
    from rampcli.planning.resolve import resolve
    from rampcli.train.build import build_parts
    from rampcli.train.optimizers import build_optimizers
    from rampcli.train.passes import Passes
    from rampcli.train.step import accumulate_gradient, local_gradients, update_weights
    from rampcli.tune.diagnose import SwitchableExchange
    from tiny_runs import TINY

    config = resolve(
        apply_overrides(
            llm.from_factory("llama3_tiny"), [f"{key}={value}" for key, value in settings.items()]
        )
    ).config
    with joined() as (rank, _):
        device = torch.device("cpu")
        meshes = build_meshes(device, config.parallel)
        passes = Passes(config, build_parts(config, meshes, device), meshes, device)
        weights = list(passes.parts[0].parameters())
        optimizers = build_optimizers(passes.parts, config.optim)
        generator = torch.Generator().manual_seed(rank)
        samples = torch.randint(int(TINY["model.vocab_size"]), (2, 17), generator=generator)
        batch = [MicroBatch(samples[:, :-1], samples[:, 1:])]

        def gradient():
            for weight in weights:
                weight.grad = None
            exchange.fill_gradients()
            result = accumulate_gradient(passes, batch, global_tokens=128, gradient_clip_val=None)
            result = result.wait()
            local = [shard.flatten() for shard in local_gradients(passes.parts, copies=True)]
            gradients = torch.cat(local).clone()
            update_weights(optimizers, lr=0.0)
            return result.loss, gradients

        class Ordinary:
            def fill_gradients(self):
                pass

        exchange = Ordinary()
        ordinary = gradient()
        exchange = SwitchableExchange(passes, optimizers)
        found = {"taken over": gradient()}
        exchange.limit_to(gradients=False, weights=True, sums=True)
        found["no gradients"] = gradient()
        repeated = gradient()
        exchange.limit_to(gradients=True, weights=True, sums=True)
        gradient()  # this step still adds what replicas of shards have not reduced
        found["after no gradients"] = gradient()
        exchange.limit_to(gradients=False, weights=False, sums=False)
        found["nothing"] = gradient() if rank == 0 else ordinary
        exchange.limit_to(gradients=True, weights=True, sums=True)
        gradient()
        found["after nothing"] = gradient()
        loss, values = found["no gradients"]
        same = {"repeated": (loss == repeated[0], torch.equal(values, repeated[1]))}
        return same | {
            name: (loss == ordinary[0], torch.equal(values, ordinary[1]))
            for name, (loss, values) in found.items()
        }


@pytest.mark.parametrize(
    ("ranks", "shards"), [(2, 2), (2, 1), (4, 2)], ids=["sharded", "replicated", "both"]
)
def test_a_step_without_exchange_needs_no_other_rank_and_leaves_no_trace(ranks, shards, tmp_path):
    from tiny_runs import TINY

    settings = TINY | {
        "optim.optimizer": "muon",
        "model.rampup_batch_size": "null",
        "trainer.num_nodes": "1",
        "trainer.devices": str(ranks),
        "parallel.data_parallel_shard_size": str(shards),
    }
    same = run_ranks(ranks, gradients_with_and_without, settings, logs=tmp_path)
    for rank, found in enumerate(same):
        assert found["taken over"] == (True, True)
        loss, gradient = found["no gradients"]
        assert loss  # the loss is summed over the ranks, and only the gradients are not
        assert not gradient
        assert found["repeated"] == (True, True)
        assert found["after no gradients"] == found["after nothing"] == (True, True)
        if rank == 0:
            assert found["nothing"] == (False, False)
