"""Low rank: a matrix as the product of two thin ones, by truncated SVD. Pure."""

from __future__ import annotations

import torch
from torch import Tensor


def low_rank(matrices: Tensor, rank: int) -> Tensor:
    """The nearest matrices of that rank (Eckart-Young), (batch, rows, columns).

    The factors are rounded to the tensor's dtype, as they would be sent.
    """
    left, strengths, right = torch.linalg.svd(matrices.float(), full_matrices=False)
    tall = (left[..., :rank] * strengths[..., None, :rank]).to(matrices.dtype)
    wide = right[..., :rank, :].to(matrices.dtype)
    product: Tensor = tall.float() @ wide.float()
    return product.to(matrices.dtype)


def factor_elements(rows: int, columns: int, rank: int) -> int:
    """Elements of both factors of one matrix."""
    return rank * (rows + columns)
