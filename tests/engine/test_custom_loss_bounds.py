"""Of every operation a custom loss may use, no more elements come out than were reckoned with."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import Tensor

from tinsmith.engine.custom_loss import FUNCTIONS, METHODS

COLUMN = torch.linspace(0.1, 0.9, 6)[:, None]
ROW = torch.linspace(0.2, 0.8, 5)[None]
MATRIX = COLUMN * ROW
WHOLE = torch.zeros(6, 5, dtype=torch.int64)
VECTOR = torch.linspace(0.1, 0.9, 6)
# Arguments that some operation or other takes; broadcasting makes results larger than each of them.
ARGUMENTS: list[tuple[object, ...]] = [
    (MATRIX,),
    (VECTOR, VECTOR),
    (COLUMN, ROW),
    (COLUMN, ROW > 0.5),
    (COLUMN > 0.5, ROW, MATRIX),
    (COLUMN, ROW, 0.5),
    (COLUMN, ROW > 0.5, 2.0),
    (COLUMN.long(), ROW.long()),
    (COLUMN > 0.5, ROW > 0.5),
    (MATRIX, 1),
    (MATRIX, (1, 0)),
    (MATRIX, True),
    (MATRIX, 1.0, True),
    (MATRIX, 2, 1),
    (MATRIX, 0, WHOLE),
    (MATRIX, -1, 0),
    (MATRIX, (3, 10)),
    (MATRIX, 0.1, 0.5),
    (MATRIX, torch.float64),
    (MATRIX, MATRIX.T),
    (COLUMN[:, :0], ROW[:0]),
    (COLUMN, 6, 4),
    (COLUMN, -1, 7),
    ([COLUMN, COLUMN, COLUMN],),
    ([MATRIX, COLUMN], 1),
    (MATRIX, "shape"),
    (VECTOR, torch.zeros(9, dtype=torch.int64)),
    (MATRIX, (torch.zeros(6, 1, dtype=torch.int64), torch.zeros(1, 7, dtype=torch.int64))),
    (MATRIX, (Ellipsis, None, slice(1, None))),
    (MATRIX, MATRIX > 0.2),
    (7,),
    (2.5, 9),
    (2, 3),
]
EVERY = FUNCTIONS | {f".{name}": operation for name, operation in METHODS.items()}


def _elements(result: object) -> int:
    if isinstance(result, tuple):
        return max((_elements(each) for each in result), default=1)
    return result.numel() if isinstance(result, Tensor) else 1


@pytest.mark.parametrize("name", sorted(EVERY))
@pytest.mark.filterwarnings("ignore")
def test_no_result_is_larger_than_its_bound(name: str) -> None:
    operation, worked = EVERY[name], 0
    for arguments in ARGUMENTS:
        before = [value.clone() for value in arguments if isinstance(value, Tensor)]
        try:
            result = operation.function(*arguments)
        except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError, AttributeError, KeyError):
            continue
        worked += 1
        assert _elements(result) <= operation.bound(arguments), (name, arguments)
        after = [value for value in arguments if isinstance(value, Tensor)]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), f"{name} wrote"
    assert worked or name in ("torch.full_like",), f"nothing here is right for {name}"


def test_products_are_reckoned_with_all_their_shapes() -> None:
    shapes = [(4,), (3, 4), (2, 3, 4), (4, 5), (2, 4, 5), (0, 4), (4, 0)]
    for first, second in itertools.product(shapes, shapes):
        arguments = torch.ones(first), torch.ones(second)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = torch.matmul(*arguments)
            except RuntimeError:
                continue
        assert result.numel() <= FUNCTIONS["torch.matmul"].bound(arguments)
