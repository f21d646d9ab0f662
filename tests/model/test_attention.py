"""Rotary positions: only distances matter."""

import torch

from oelm.model.attention import rotate, rotation_table


def test_rotated_products_depend_on_the_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 16, generator=generator)
    table = rotation_table(40, 16)
    queries, keys = rotate(q.expand(40, 16), table), rotate(k.expand(40, 16), table)
    products = queries @ keys.T
    for distance in (0, 1, 7):
        along = products.diagonal(-distance)
        torch.testing.assert_close(along, along[0].expand_as(along), atol=1e-4, rtol=1e-4)
    assert not torch.isclose(products[5, 5], products[5, 0])


def test_rotation_keeps_lengths() -> None:
    x = torch.randn(3, 20, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rotate(x, rotation_table(20, 8)).norm(dim=-1), x.norm(dim=-1))
