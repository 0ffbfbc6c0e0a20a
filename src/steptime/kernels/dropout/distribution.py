"""Whether a dropout draws the masks it should: the right rate, independent of place and call, scaled, reused backward.

    report = check_masks(lambda x, p: torch.nn.functional.dropout(x, p), 0.1, (64, 50, 256), draws=8)
    report.ok, report.reasons

For any remedy that changes the random stream: the stream differs by design, its distribution must not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

# Distances in memory at which a generator that works in blocks, or on several threads, would repeat itself.
_LAGS = (2, 3, 4, 8, 16, 64, 128, 256, 512, 4096)


@dataclass(frozen=True, kw_only=True)
class MaskReport:
    """What the masks of one dropout look like; p-values are two-sided, under independent masks of rate p.

    Attributes:
        rate: fraction of elements dropped, over all draws.
        expected: p.
        elements: elements behind `rate`.
        p_value_rate: binomial (normal approximation).
        p_value_neighbours: correlation of an element with the next of its row, and with the one at the same place of
            the next row, plane, ...; the smallest, times the number of dimensions.
        p_value_lags: correlation at distances of 2 to 4096 elements in memory; the smallest, times their number.
        p_value_rows: spread of the kept counts of the rows (last dimension), chi-squared.
        p_value_columns: spread of the kept counts of the columns, over all rows and draws, chi-squared.
        p_value_calls: correlation between one call's mask and the next's.
        scale_error: largest relative difference of a kept element from input / (1 - p).
        backward_equal: whether each gradient is scaled exactly as its element was in the forward pass.
        reasons: what is wrong, one phrase a failed check; empty when `ok`.
    """

    rate: float
    expected: float
    elements: int
    p_value_rate: float
    p_value_neighbours: float
    p_value_lags: float
    p_value_rows: float
    p_value_columns: float
    p_value_calls: float
    scale_error: float
    backward_equal: bool
    reasons: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.reasons


def check_masks(
    dropout_fn: Callable[[torch.Tensor, float], torch.Tensor],
    p: float,
    shape: Sequence[int],
    draws: int,
    *,
    dtype: torch.dtype = torch.float32,
    alpha: float = 1e-4,
) -> MaskReport:
    """Calls `dropout_fn(x, p)` `draws` times on tensors of ones of `shape` and tests what it dropped.

    A right dropout fails with probability `alpha` at most, shared among the six tests. The normal approximations
    want at least 10,000 elements in all; from 100,000 on a rate that is off by a tenth is found with certainty.

    Raises:
        ValueError: p is not inside (0, 1), fewer than two draws, or too few elements to tell anything.
    """
    rows, columns = math.prod(shape[:-1]), shape[-1] if shape else 0
    if not 0.0 < p < 1.0 or draws < 2 or draws * rows * columns < 10_000:
        raise ValueError(f"masks of {tuple(shape)} x {draws} draws at p = {p} cannot be judged: too few, or p trivial")
    q = 1.0 - p
    kept = 0
    column_counts = torch.zeros(columns, dtype=torch.int64)
    row_statistic = 0.0
    pairs = {name: _Pairs(q) for name in ("calls", *(f"axis {axis}" for axis in range(len(shape))))}
    lags = {lag: _Pairs(q) for lag in _LAGS if lag < rows * columns}
    scale_error, backward_equal = 0.0, True
    previous: torch.Tensor | None = None
    for _ in range(draws):
        x = torch.ones(tuple(shape), dtype=dtype, requires_grad=True)
        with torch.enable_grad():
            y = dropout_fn(x, p)
            (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y)) if y.requires_grad else (torch.zeros_like(x),)
        y = y.detach()
        keep = y != 0
        backward_equal = backward_equal and torch.equal(gradient, y)
        if bool(keep.any()):
            scale_error = max(scale_error, float((y[keep].double() * q - 1.0).abs().max()))
        kept += int(torch.count_nonzero(keep))
        counts = keep.reshape(rows, columns).sum(-1)
        row_statistic += float(((counts.double() - columns * q) ** 2).sum())
        column_counts += keep.reshape(rows, columns).sum(0)
        for axis, size in enumerate(shape):
            if size > 1:
                pairs[f"axis {axis}"].add(keep.narrow(axis, 0, size - 1), keep.narrow(axis, 1, size - 1))
        flat = keep.reshape(-1)
        for lag, found in lags.items():
            found.add(flat[:-lag], flat[lag:])
        if previous is not None:
            pairs["calls"].add(previous, keep)
        previous = keep
    total = draws * rows * columns
    neighbours = [pairs[f"axis {axis}"].p_value() for axis in range(len(shape)) if shape[axis] > 1]
    p_values = {
        "rate": _two_sided((kept - total * q) / math.sqrt(total * p * q)),
        "neighbours": min(1.0, min(neighbours, default=1.0) * max(1, len(neighbours))),
        "lags": min(1.0, min((found.p_value() for found in lags.values()), default=1.0) * max(1, len(lags))),
        "rows": _dispersion(row_statistic / (columns * p * q), draws * rows, columns, p),
        "columns": _dispersion(
            float(((column_counts.double() - draws * rows * q) ** 2).sum()) / (draws * rows * p * q),
            columns,
            draws * rows,
            p,
        ),
        "calls": pairs["calls"].p_value(),
    }
    reasons = [_WRONG[name] for name, value in p_values.items() if value < alpha / len(p_values)]
    if scale_error > 4 * torch.finfo(dtype).eps:
        reasons.append(f"kept elements are not scaled by 1/(1-p): off by {scale_error:.2g}")
    if not backward_equal:
        reasons.append("the backward pass does not use the mask of the forward pass")
    return MaskReport(
        rate=1.0 - kept / total,
        expected=p,
        elements=total,
        p_value_rate=p_values["rate"],
        p_value_neighbours=p_values["neighbours"],
        p_value_lags=p_values["lags"],
        p_value_rows=p_values["rows"],
        p_value_columns=p_values["columns"],
        p_value_calls=p_values["calls"],
        scale_error=scale_error,
        backward_equal=backward_equal,
        reasons=tuple(reasons),
    )


_WRONG = {
    "rate": "the drop rate is not p",
    "neighbours": "neighbouring elements are not independent",
    "lags": "elements some distance apart are not independent",
    "rows": "rows keep too unequal or too equal numbers of elements",
    "columns": "columns keep too unequal or too equal numbers of elements",
    "calls": "successive calls are not independent",
}


class _Pairs:
    """Covariance of paired mask bits about the known mean q, from exact counts."""

    def __init__(self, q: float) -> None:
        self._q = q
        self._count = self._both = self._first = self._second = 0

    def add(self, first: torch.Tensor, second: torch.Tensor) -> None:
        self._count += first.numel()
        self._both += int(torch.count_nonzero(first & second))
        self._first += int(torch.count_nonzero(first))
        self._second += int(torch.count_nonzero(second))

    def p_value(self) -> float:
        """Under independence the sum of (a-q)(b-q) has mean 0 and variance n (q(1-q))^2, overlapping pairs too."""
        q = self._q
        total = self._both - q * (self._first + self._second) + q * q * self._count
        return _two_sided(total / (math.sqrt(self._count) * q * (1.0 - q)))


def _dispersion(statistic: float, groups: int, size: int, p: float) -> float:
    """p-value of the sum over `groups` of (count - mean)^2 / variance, counts Binomial(size, p).

    Chi-squared by Wilson and Hilferty (1931), after rescaling to the binomial's own kurtosis: a squared standardised
    binomial has variance 2 + (1 - 6pq)/(size pq).
    """
    pq = p * (1.0 - p)
    spread = 2.0 + (1.0 - 6.0 * pq) / (size * pq)
    adjusted = max(0.0, groups + (statistic - groups) * math.sqrt(2.0 / spread))
    third = 2.0 / (9.0 * groups)
    return _two_sided(((adjusted / groups) ** (1.0 / 3.0) - (1.0 - third)) / math.sqrt(third))


def _two_sided(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2.0))
