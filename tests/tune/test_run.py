"""Where a search starts."""

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.machine import host
from rampcli.planning.resolve import resolve
from rampcli.tune.run import predict
from rampcli.tune.sizes import candidates


def test_a_search_starts_with_the_smallest_size_if_the_memory_is_unknown(monkeypatch, tmp_path):
    config = apply_overrides(llm.from_factory("llama3_tiny"), ["trainer.accelerator=cpu"])
    resolved = resolve(config)
    sizes = candidates(resolved)
    assert predict(resolved.config, sizes) == sizes[-1].micro_batch_size
    monkeypatch.setattr(host, "HOST", tmp_path / "meminfo")
    assert predict(resolved.config, sizes) == sizes[0].micro_batch_size
