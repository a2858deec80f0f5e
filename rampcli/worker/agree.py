"""Facts about the data that all ranks must agree on."""

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Tensor

from rampcli.data.tokenizer import bytes_of_tokens
from rampcli.errors import RampcliError
from rampcli.parallel.ranks import broadcast_from_rank_0


def agreed_bytes_of_tokens(
    tokenizer: str | None, *, vocab_size: int, device: torch.device
) -> Tensor | None:
    """Returns how many bytes of text each token stands for, int32 [vocabulary], or None if unknown.

    Rank 0 always reads data, so it tells the others. Every rank calls this.

    Args:
        tokenizer: contents of tokenizer.json on rank 0.
    """
    known = None
    if dist.get_rank() == 0 and tokenizer is not None:
        known = bytes_of_tokens(Tokenizer.from_str(tokenizer), vocab_size=vocab_size)
    if not broadcast_from_rank_0(known is not None):
        return None
    shared = torch.zeros(vocab_size, dtype=torch.int32, device=device)
    if known is not None:
        shared.copy_(torch.from_numpy(known))
    dist.broadcast(shared, src=0)
    return shared


def agreed_fingerprint(fingerprint: str | None, *, device: torch.device) -> str:
    """Returns the fingerprint of the corpora after checking that all ranks found the same.

    Args:
        fingerprint: fingerprint that this rank found, or None if another rank reads for it.

    Raises:
        RampcliError: the fingerprints differ.
    """
    lowest, highest = (
        torch.full((32,), rest, dtype=torch.uint8, device=device) for rest in (255, 0)
    )
    if fingerprint is not None:
        for found in (lowest, highest):
            found.copy_(torch.tensor(list(bytes.fromhex(fingerprint))))
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    if not torch.equal(lowest, highest):
        raise RampcliError(
            "the hosts do not read the same corpora",
            remedy="the same files, with the same names, on all of them",
        )
    return bytes(lowest.tolist()).hex()
