"""Keys and values of the tokens so far, which make the next token cost one token's work."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Cache:
    """Keys and values of the tokens so far, of every layer of a decoder.

    Rows of unequal length begin with pad tokens, so that all of them end in the same column.
    Use it in `torch.no_grad`: it is written in place, which a backward pass does not allow.

    Args:
        capacity: most tokens of a row, pads included. Their memory is allocated at once.
        pads: number of pads at the start of each row, int64 [rows]. None: no row has pads.

    Attributes:
        length: tokens of each row so far, pads included.
        layers: the part of each layer, by the layer's name.
    """

    def __init__(self, *, capacity: int, pads: Tensor | None = None) -> None:
        self.capacity = capacity
        self.pads = pads
        self.length = 0
        self.layers: dict[str, LayerCache] = {}

    def layer(self, name: str) -> "LayerCache":
        """Returns the part of a layer, which is empty at first."""
        if name not in self.layers:
            self.layers[name] = LayerCache(self)
        return self.layers[name]

    def positions(self, columns: Tensor, tokens: int) -> Tensor:
        """Returns the positions of the next tokens, as `Decoder.forward` takes them.

        Args:
            columns: the numbers from 0, int64, at least `capacity` of them.

        Returns:
            int64 [tokens], or [rows, tokens] with pads, whose position is 0.
        """
        columns = columns[self.length : self.length + tokens]
        return columns if self.pads is None else (columns - self.pads[:, None]).clamp(min=0)

    @classmethod
    def joined(cls, parts: Sequence["Cache"], *, copies: int, capacity: int) -> "Cache":
        """Returns a cache of the rows of the parts, `copies` times each, one after the other.

        The parts have as many tokens each, pads included. They are empty afterwards: each layer is
        freed once it is copied.

        Args:
            parts: at least one cache. All of them have pads, or none.
        """
        pads = [part.pads for part in parts if part.pads is not None]
        joined = cls(
            capacity=capacity, pads=torch.cat(pads).repeat_interleave(copies) if pads else None
        )
        joined.length = parts[0].length
        for name in list(parts[0].layers):
            joined.layer(name).join([part.layers.pop(name) for part in parts], copies)
        return joined

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but `rows`, int64, which are in increasing order. Frees no memory."""
        if self.pads is not None:
            self.pads = self.pads[rows]
        for layer in self.layers.values():
            layer.keep(rows)


class LayerCache:
    """One layer's part of a cache.

    Attributes:
        memory: keys and values, [2, rows, groups, capacity, head_size]; None before the first.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.memory: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the keys and values of tokens, each [rows, groups, tokens, head_size].

        Returns those of all tokens so far, each [rows, groups, sequence, head_size]: views.
        """
        if self.memory is None:
            rows, groups, _, head_size = key.shape
            self.memory = key.new_empty(2, rows, groups, self.cache.capacity, head_size)
        length, tokens = self.cache.length, key.shape[2]
        keys, values = self.memory.narrow(3, 0, length + tokens).unbind()
        keys.narrow(2, length, tokens).copy_(key)
        values.narrow(2, length, tokens).copy_(value)
        return keys, values

    def join(self, parts: Sequence["LayerCache"], copies: int) -> None:
        """Fills this empty part with the rows of others, `copies` times each."""
        filled = [
            part.memory.narrow(3, 0, self.cache.length) for part in parts if part.memory is not None
        ]
        _, _, groups, length, head_size = filled[0].shape
        rows = [memory.shape[1] for memory in filled]
        memory = filled[0].new_empty(2, sum(rows), copies, groups, self.cache.capacity, head_size)
        for source, target in zip(filled, torch.split(memory, rows, dim=1), strict=True):
            target.narrow(4, 0, length).copy_(source.unsqueeze(2))
        self.memory = memory.flatten(1, 2)

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but `rows`."""
        assert self.memory is not None
        kept = self.memory.narrow(3, 0, self.cache.length)[:, rows]
        self.memory = self.memory.narrow(1, 0, len(rows))
        self.memory.narrow(3, 0, self.cache.length).copy_(kept)
