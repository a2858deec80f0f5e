import pytest
import torch

from rampcli.parallel.context import pieces_of


class Place:
    """Stands in for a mesh: `pieces_of` needs only the rank and the number of ranks."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def size(self) -> int:
        return self.ranks

    def get_local_rank(self) -> int:
        return self.rank


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_token_is_on_one_rank_and_ranks_attend_to_equally_many(ranks):
    positions = torch.arange(48)
    pieces = [pieces_of(positions, Place(rank, ranks), dim=0) for rank in range(ranks)]
    assert torch.equal(torch.cat(pieces).sort().values, positions)
    assert len({int(piece.sum()) for piece in pieces}) == 1
