"""Keeps what we compose and what an application of Hydra composes in one process apart."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def state_kept() -> Iterator[None]:
    """Lets Hydra start anew, and restores its state of the process, which an application may need.

    The state consists of the loader that has started, the version base and OmegaConf's resolvers.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.singleton import Singleton
    from hydra.version import VersionBase
    from omegaconf.basecontainer import BaseContainer

    kinds: tuple[Any, ...] = (GlobalHydra, VersionBase)
    kept = {kind: Singleton._instances.pop(kind) for kind in kinds if kind in Singleton._instances}
    resolvers = dict(BaseContainer._resolvers)
    # Hydra removes its state itself, if it has started.
    GlobalHydra.instance()
    try:
        yield
    finally:
        for kind in kinds:
            Singleton._instances.pop(kind, None)
        Singleton._instances.update(kept)
        BaseContainer._resolvers = resolvers


@contextmanager
def only_own_nodes() -> Iterator[None]:
    """Leaves only Hydra's own nodes in the ConfigStore: those of an application are not ours."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    kept = store.repo
    store.repo = {"hydra": kept["hydra"]}
    try:
        yield
    finally:
        store.repo = kept
