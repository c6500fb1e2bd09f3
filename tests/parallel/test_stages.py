"""The units of sharding are where a model's parameters are, not where most modules are."""

from __future__ import annotations

import torch
from torch import nn

from scalewright.parallel.stages import find_blocks


class Head(nn.Module):
    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(dim, size, bias=False) for _ in range(3))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(dim, dim // heads) for _ in range(heads))
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))


class Transformer(nn.Module):
    def __init__(self, layers: int, heads: int = 8, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, 100)


def kinds(model: nn.Module) -> list[str]:
    return [type(block).__name__ for block in find_blocks(model)]


def test_blocks_of_many_heads_are_the_units():
    with torch.device("meta"):
        model = Transformer(layers=6, heads=8)
    assert find_blocks(model) == list(model.blocks)


def test_one_container_around_all_is_no_unit():
    with torch.device("meta"):
        assert kinds(nn.Sequential(Transformer(6))) == ["Block"] * 6


def test_two_towers_are_cut_into_their_blocks():
    """A tower gathered whole would be half of the model."""
    with torch.device("meta"):
        assert kinds(nn.ModuleList([Transformer(4), Transformer(3)])) == ["Block"] * 7


def test_a_block_within_a_block_belongs_to_it():
    with torch.device("meta"):
        outer = nn.ModuleList(Block(32, 4) for _ in range(3))
        for block in outer:
            block.inner = nn.ModuleList([Block(8, 2)])
    assert find_blocks(outer) == list(outer)


def test_a_single_block_is_one():
    with torch.device("meta"):
        assert kinds(nn.ModuleList([nn.Linear(3, 3)])) == ["Linear"]
