"""Torch's pipeline stages and interleaved schedule, with memory for micro batches in flight only.

Torch allocates what a stage receives for all micro batches of a step before the first one, and its
interleaved schedule keeps what it sends until the last one.
"""

import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B, schedules
from torch.distributed.pipelining.schedules import SEND_B, SEND_F, _batch_p2p, _wait_batch_p2p

from rampcli.estimate.flights import SENDS_IN_FLIGHT


class LazyPipelineStage(PipelineStage):
    """A pipeline stage that allocates a buffer when it starts to receive into it.

    The pass that takes the received tensor frees the buffer.

    Args:
        args, keywords: of torch's class.
        after_trial: called after passes on arbitrary numbers, in which torch learns the shapes.
    """

    def __init__(self, *args: Any, after_trial: Callable[[], None], **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.after_trial = after_trial

    def _prepare_forward_infra(self, num_microbatches: int, *args: Any, **keywords: Any) -> Any:
        result = super()._prepare_forward_infra(1, *args, **keywords)
        self._inputs = _with_new_buffers(self.args_recv_info[0], torch.device("meta"))
        self.args_recv_info = dict.fromkeys(range(num_microbatches), self._inputs)
        return result

    def _prepare_backward_infra(self, num_microbatches: int, *args: Any, **keywords: Any) -> Any:
        result = super()._prepare_backward_infra(1, *args, **keywords)
        self._grads = _with_new_buffers(self.grad_recv_info[0], torch.device("meta"))
        self.grad_recv_info = dict.fromkeys(range(num_microbatches), self._grads)
        self.chunks = num_microbatches
        self.after_trial()
        return result

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[Any]:
        """Returns the receives of a forward pass's inputs into new buffers."""
        self.args_recv_info[fwd_chunk_id] = _with_new_buffers(self._inputs, self.device)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[Any]:
        """Returns the receives of a backward pass's gradients into new buffers."""
        if self.has_backward:
            self.grad_recv_info[bwd_chunk_id] = _with_new_buffers(self._grads, self.device)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        activations = super()._retrieve_recv_activations(fwd_chunk_id)
        self.args_recv_info[fwd_chunk_id] = self._inputs
        return activations

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        gradients = super()._retrieve_recv_grads(bwd_chunk_id)
        self.grad_recv_info[bwd_chunk_id] = self._grads
        return gradients

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **keywords: Any) -> None:
        """Runs a backward pass, or only ends a forward pass without one."""
        super().backward_one_chunk(bwd_chunk_id, *args, **keywords)
        # Torch keeps inputs and outputs without a backward pass, and a step's losses with graphs
        # that refer to inputs.
        for name in ("fwd_cache", "_forward_chunk_states"):  # before and since torch 2.15
            getattr(self, name, {}).pop(bwd_chunk_id, None)
        if keywords["loss"] is not None:
            keywords["loss"].detach_()


def _with_new_buffers(received: tuple[Any, ...], device: torch.device) -> tuple[Any, ...]:
    """Returns copies of torch's descriptions of the tensors that a stage receives.

    Inputs of the model are not received and have no buffer.
    """
    copies = tuple(map(copy.copy, received))
    for each in copies:
        if (buffer := getattr(each, "buffer", None)) is not None:
            grad = buffer.requires_grad
            each.buffer = torch.empty_like(buffer, device=device, requires_grad=grad)
    return copies


def _wait_for_nothing(action: Any, context: Any) -> None:
    """Replaces a wait of torch's schedule."""


class InterleavedSchedule(ScheduleInterleaved1F1B):
    """Interleaved 1F1B that waits for older sends, where torch keeps all of them until the end."""

    def __init__(self, stages: Sequence[LazyPipelineStage], **options: Any) -> None:
        super().__init__(list(stages), **options)
        self._sent: dict[Any, deque[list[Any]]] = {SEND_F: deque(), SEND_B: deque()}
        for direction in self._sent:
            self._comp_type_to_function_map[direction] = self._send
        # Since torch 2.15 its schedule has waits of its own, for sends that this one waits for.
        for name in ("WAIT_SEND_F", "WAIT_SEND_B"):
            if hasattr(schedules, name):
                self._comp_type_to_function_map[getattr(schedules, name)] = _wait_for_nothing

    def _send(self, action: Any, context: Any) -> None:  # noqa: ARG002
        (stage,) = (each for each in self._stages if each.stage_index == action.stage_index)
        forward = action.computation_type == SEND_F
        ops_of = stage.get_fwd_send_ops if forward else stage.get_bwd_send_ops
        sent = self._sent[action.computation_type]
        sent.append(_batch_p2p(ops_of(action.microbatch_index)))
        # Torch puts the actions of all ranks in one order, in which a receive directly follows its
        # send. So an older send waits for earlier actions only, and ranks never wait in a circle.
        if len(sent) > SENDS_IN_FLIGHT:
            _wait_batch_p2p(sent.popleft())

    def _step_microbatches(self, *args: Any, **keywords: Any) -> None:
        super()._step_microbatches(*args, **keywords)
        for sent in self._sent.values():
            while sent:
                _wait_batch_p2p(sent.popleft())
