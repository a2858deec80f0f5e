"""Pretends CUDA devices in each Python process that imports torch.

Python imports this module when it starts with this folder on PYTHONPATH. Processes without torch
pay only for an entry of `sys.meta_path`.
"""

import ctypes
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder


class AroundTorch:
    """Finds torch as Python does, and starts the pretended devices once it is loaded."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Returns the place of torch, with a loader that starts the devices."""
        if name != "torch" or not os.environ.get("CUDA_VISIBLE_DEVICES"):
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                sys.meta_path.remove(AroundTorch)
                # Torch asks for the hooks of CUDA while it is imported, and only once.
                library = ctypes.CDLL(os.environ["PRETENDED_CUDA_LIBRARY"])
                load(module)
                import pretended_cuda

                pretended_cuda.start(library)

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, AroundTorch)
