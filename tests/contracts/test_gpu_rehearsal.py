"""`make rehearse-gpu` refuses builds of torch that its device was not written for."""

import re

import pytest

from gpu_rehearsal.build import ROOT, misfit_of

PINNED = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]


@pytest.mark.parametrize(
    ("installed", "has_cuda"),
    [("1.0.0+cpu", False), (PINNED, True), (f"{PINNED}+cu130", True), ("1.0.0", True)],
)
def test_another_build_of_torch_is_named_with_the_one_that_is_needed(installed, has_cuda):
    misfit = misfit_of(installed, has_cuda=has_cuda)
    assert f"needs torch {PINNED} (constraints.txt) built for CPUs" in misfit
    assert f"torch {installed} built for {'CUDA' if has_cuda else 'CPUs'} is installed" in misfit


@pytest.mark.parametrize("installed", [PINNED, f"{PINNED}+cpu"])
def test_the_pinned_build_for_cpus_has_the_device(installed):
    assert misfit_of(installed, has_cuda=False) is None
