"""Squared norms of gradients, large and small, whole and cut."""

from __future__ import annotations

import torch

from scalewright.train.clipping import PIECE, squared_norms

# Eight running sums of 8192 squares each, in fp32: measured 2e-7; twice that in the square, and a margin.
TOLERANCE = 1e-6


def test_a_large_tensor_has_the_norm_of_its_halves():
    """One running sum a lane over all of it would be off by 7e-5 in the norm."""
    large = torch.randn(4_000_000, generator=torch.Generator().manual_seed(0)) * 1e-3
    expected = large.double().square().sum()
    whole = squared_norms([large])
    assert abs(float(whole / expected) - 1) < TOLERANCE
    assert abs(float(squared_norms([*large.split(2_000_000)]).sum() / expected) - 1) < TOLERANCE


def test_tensors_of_all_sizes():
    """None of its numbers here, a number alone, a transposed one, a piece and one number more."""
    random = torch.Generator().manual_seed(1)
    shapes = ((0, 4), (), (PIECE + 1,), (3, 5), (PIECE,))
    tensors = [torch.randn(shape, generator=random) for shape in shapes]
    tensors.append(torch.randn(400, 300, generator=random).T)
    expected = torch.stack([tensor.double().square().sum() for tensor in tensors]).float()
    torch.testing.assert_close(squared_norms(tensors), expected, rtol=TOLERANCE, atol=0.0)
