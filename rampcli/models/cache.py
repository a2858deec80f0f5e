"""Keys and values of the tokens so far, which make the next token cost one token's work."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SharedPrompts:
    """Prompts of a cache whose keys and values are kept once for all of their rows.

    Attributes:
        tokens: number of tokens of each prompt, pads included.
        prompts: number of prompts.
        width: number of rows of the prompt with the most rows.
        places: int64 [rows], ascending: number of the row's prompt x `width`, plus the number of
            the row among those of its prompt.
    """

    tokens: int
    prompts: int
    width: int
    places: Tensor

    def keep(self, rows: Tensor) -> tuple["SharedPrompts", Tensor]:
        """Returns the prompts of some rows, and their numbers among all prompts.

        Args:
            rows: at least one, int64, in increasing order.
        """
        numbers, prompt_of_row, counts = torch.unique_consecutive(
            self.places[rows] // self.width, return_inverse=True, return_counts=True
        )
        width, starts = int(counts.max()), counts.cumsum(0) - counts
        within = torch.arange(len(rows), device=rows.device) - starts[prompt_of_row]
        places = prompt_of_row * width + within
        return SharedPrompts(self.tokens, len(numbers), width, places), numbers

    def multiply(self, of_rows: Tensor, of_prompts: Tensor) -> Tensor:
        """Returns the product of each row's matrices with those of its prompt.

        The matrices of a prompt's rows are stacked, so that those of the prompt are read once.

        Args:
            of_rows: [rows, groups, queries, inner].
            of_prompts: [prompts, groups, inner, columns].

        Returns:
            [rows, groups, queries, columns].
        """
        rows, groups, queries, inner = of_rows.shape
        is_full = rows == self.prompts * self.width
        if not is_full:
            padded = of_rows.new_zeros(self.prompts * self.width, groups, queries, inner)
            of_rows = padded.index_copy_(0, self.places, of_rows)
        stacked = of_rows.view(self.prompts, self.width, groups, queries, inner).transpose(1, 2)
        product = stacked.reshape(self.prompts, groups, self.width * queries, inner) @ of_prompts
        product = product.view(self.prompts, groups, self.width, queries, of_prompts.shape[3])
        product = product.transpose(1, 2).flatten(0, 1)
        return product if is_full else product[self.places]


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
        shared: prompts that several rows begin with. None: each row has memory of its own.
    """

    def __init__(self, *, capacity: int, pads: Tensor | None = None) -> None:
        self.capacity = capacity
        self.pads = pads
        self.length = 0
        self.layers: dict[str, LayerCache] = {}
        self.shared: SharedPrompts | None = None

    def layer(self, name: str) -> "LayerCache":
        """Returns the part of a layer, which is empty at first."""
        if name not in self.layers:
            self.layers[name] = LayerCache(self)
        return self.layers[name]

    @property
    def shared_tokens(self) -> int:
        """Tokens of each row that are part of a shared prompt, pads included."""
        return 0 if self.shared is None else self.shared.tokens

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

        Copies share the memory of their row, and go on one token at a time. The parts have as many
        tokens each, pads included. They are empty afterwards: each layer is freed once it is
        copied.

        Args:
            parts: at least one cache. All of them have pads, or none.
        """
        pads = [part.pads for part in parts if part.pads is not None]
        joined = cls(
            capacity=capacity, pads=torch.cat(pads).repeat_interleave(copies) if pads else None
        )
        joined.length = parts[0].length
        for name in list(parts[0].layers):
            joined.layer(name).join([part.layers.pop(name) for part in parts], is_shared=copies > 1)
        prompts = [layer.prompts for layer in joined.layers.values() if layer.prompts is not None]
        if prompts:
            rows = prompts[0].shape[1]
            places = torch.arange(rows * copies, device=prompts[0].device)
            joined.shared = SharedPrompts(joined.length, rows, copies, places)
        return joined

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but `rows`, int64, which are in increasing order.

        Frees the memory of prompts that no row has any more, and no other memory.
        """
        if self.pads is not None:
            self.pads = self.pads[rows]
        prompts = None
        if self.shared is not None:
            self.shared, prompts = self.shared.keep(rows)
        for layer in self.layers.values():
            layer.keep(rows, prompts)


class LayerCache:
    """One layer's part of a cache.

    Attributes:
        memory: keys and values of each row, [2, rows, groups, capacity, head_size], without those
            of shared prompts; None before the first.
        prompts: keys and values of shared prompts, [2, prompts, groups, tokens, head_size]; None
            without any.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.memory: Tensor | None = None
        self.prompts: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds the keys and values of tokens, each [rows, groups, tokens, head_size].

        Returns those of all tokens so far after shared prompts, each
        [rows, groups, sequence, head_size]: views.
        """
        shared, tokens = self.cache.shared_tokens, key.shape[2]
        if self.memory is None:
            rows, groups, _, head_size = key.shape
            self.memory = key.new_empty(2, rows, groups, self.cache.capacity - shared, head_size)
        length = self.cache.length - shared
        keys, values = self.memory.narrow(3, 0, length + tokens).unbind()
        keys.narrow(2, length, tokens).copy_(key)
        values.narrow(2, length, tokens).copy_(value)
        return keys, values

    def join(self, parts: Sequence["LayerCache"], *, is_shared: bool) -> None:
        """Fills this empty part with the rows of others, as shared prompts or as rows."""
        filled = [
            part.memory.narrow(3, 0, self.cache.length) for part in parts if part.memory is not None
        ]
        if is_shared:
            self.prompts = torch.cat(filled, dim=1)
        else:
            _, _, groups, length, head_size = filled[0].shape
            rows = sum(memory.shape[1] for memory in filled)
            self.memory = filled[0].new_empty(2, rows, groups, self.cache.capacity, head_size)
            torch.cat(filled, dim=1, out=self.memory.narrow(3, 0, length))

    def keep(self, rows: Tensor, prompts: Tensor | None) -> None:
        """Drops all rows but `rows`, and all shared prompts but `prompts`."""
        if self.prompts is not None:
            self.prompts = self.prompts[:, prompts]
        if self.memory is not None:
            length = self.cache.length - self.cache.shared_tokens
            kept = self.memory.narrow(3, 0, length)[:, rows]
            self.memory = self.memory.narrow(1, 0, len(rows))
            self.memory.narrow(3, 0, length).copy_(kept)
