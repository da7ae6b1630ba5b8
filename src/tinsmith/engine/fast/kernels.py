"""The matrix product y = x Wᵀ, in the best of the exact ways this machine offers.

Contract, for everything built on it:

* ``kernel.linear(x, w)`` is x Wᵀ for x [n, in] and w [out, in]; w may be a transposed view, so x W is
  ``kernel.linear(x, w.t())`` and one copy of the weights serves both directions.
* float32 is computed in float32: a candidate whose errors are not of the plain product's size is not chosen.
* A row's result does not depend on the other rows, nor, from `MIN_ROWS` rows on, on how many there are. That
  is what makes packing invisible; a pass with fewer rows is to be filled up to `MIN_ROWS`.

torch's own products (`bmm`, `addmm_`, `@`) serve attention and adapters. Inside ``with kernel.products():``
they go through oneDNN too, which doubles their speed on the same CPUs. The only way there is a switch that
would also permit bfloat16 arithmetic, so it is used only where what comes out is float32 all the same. There
a result may depend on the shape of the whole product: right for training, whose shapes follow from a run
alone, and not for sampling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

MIN_ROWS = 16  # below, libraries switch to other loops, which sum in another order

_Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to multiply matrices."""

    name: str
    _linear: _Linear
    _switch: bool = False  # for `products`

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x Wᵀ + bias for x [n, in], weight [out, in] (any strides), bias [out]."""
        return self._linear(x, weight, bias)

    @contextmanager
    def products(self) -> Iterator[None]:
        """Inside, torch's own products are quick too. The switch is the whole process's, so: briefly."""
        if not self._switch or torch.get_float32_matmul_precision() != _PLAIN:  # somebody else chose
            yield
            return
        torch.set_float32_matmul_precision(_ROUTED)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(_PLAIN)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # The op behind compiled CPU models. It reads strided weights in place and keeps float32 as float32.
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


_TORCH = Kernel("torch", F.linear)
_ONEDNN = Kernel("onednn", _onednn)
CANDIDATES = (_TORCH, _ONEDNN)
_CLEARLY_SLOWER = 1.5
_PLAIN, _ROUTED = "highest", "medium"


def best_kernel(device: torch.device, dtype: torch.dtype) -> Kernel:
    """The kernel for this machine, found once in a fraction of a second.

    oneDNN, which nowhere loses by much and on some CPUs doubles the speed, unless it turns out to be inexact,
    unsteady or clearly slower. The bar is so far from the usual that noise does not decide: replaying an
    operation after a restart must give the same bits.
    """
    if device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return _TORCH
    return _measured(dtype)


@cache
def _measured(dtype: torch.dtype) -> Kernel:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 512, generator=generator).to(dtype) for n in (256, 1024))
    fit = _is_exact(_ONEDNN, x, w) and _treats_rows_alike(_ONEDNN, x, w)
    if not fit or _clearly_slower(_ONEDNN, _TORCH, x, w):
        return _TORCH
    return replace(_ONEDNN, _switch=dtype == torch.float32 and _switch_is_exact())


def _switch_is_exact() -> bool:
    """Not asked where there is a GPU, whose products the switch would change too."""
    if torch.cuda.is_available():
        return False
    plain = _errors_of_products()
    with replace(_ONEDNN, _switch=True).products():
        routed = _errors_of_products()
    return all(ours <= 4 * theirs for ours, theirs in zip(routed, plain, strict=True))


def _errors_of_products() -> list[float]:
    """Root mean square errors of the forms attention and adapters use."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(3, 256, n, generator=generator) for n in (64, 512))
    pairs = [
        (torch.bmm(x.transpose(1, 2), y), torch.bmm(x.double().transpose(1, 2), y.double())),
        (x[0].t() @ y[0], x[0].double().t() @ y[0].double()),
        (torch.zeros(64, 512).addmm_(x[1].t(), y[1]), x[1].double().t() @ y[1].double()),
    ]
    return [float((ours.double() - true).square().mean().sqrt()) for ours, true in pairs]


def _is_exact(kernel: Kernel, x: Tensor, w: Tensor) -> bool:
    """Errors like the plain product's. Summing in another order may double them; coarser numbers, such as
    bfloat16 or tf32 in the place of float32, would make them hundreds of times as large.
    """
    true = x.double() @ w.double().t()
    error, plain = ((k.linear(x, w).double() - true).abs().max() for k in (kernel, _TORCH))
    return bool(error <= 4 * plain)


def _treats_rows_alike(kernel: Kernel, x: Tensor, w: Tensor) -> bool:
    """Whether a row comes out the same to the last bit, whatever it is multiplied with."""
    for weight in (w, w.t().contiguous().t()):
        whole = kernel.linear(x, weight)
        for rows in (MIN_ROWS, 37, 100, 255):
            if not torch.equal(kernel.linear(x[-rows:], weight), whole[-rows:]):
                return False
    return True


def _clearly_slower(kernel: Kernel, than: Kernel, x: Tensor, w: Tensor) -> bool:
    """The best of a few rounds in turns, both directions: a disturbance only makes a round longer."""
    best = {kernel.name: float("inf"), than.name: float("inf")}
    y = than.linear(x, w)
    for _ in range(12):
        for measured in (kernel, than):
            started = time.perf_counter()
            measured.linear(x, w)
            measured.linear(y, w.t())
            best[measured.name] = min(best[measured.name], time.perf_counter() - started)
    return best[kernel.name] > _CLEARLY_SLOWER * best[than.name]
