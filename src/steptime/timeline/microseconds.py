"""Exact times: Kineto writes microseconds as decimal text, a Timeline holds integer nanoseconds.

A float64 near 1.7e15 us (the epoch) resolves 0.25 us only, so that no step on the way may be a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np
from numpy.typing import NDArray

SAFE_DIGITS = 15
"""Whole microseconds of so many digits fit int64 as nanoseconds, so that the fast path needs no check."""


def to_nanoseconds(texts: Sequence[msgspec.Raw]) -> NDArray[np.int64]:
    """JSON numbers of microseconds ("12", "12.345", "1.5e3", also quoted) as integer nanoseconds.

    Digits beyond the nanosecond are cut off.

    Raises:
        ValueError: a text that is not a number, or does not fit int64.
    """
    if not texts:
        return np.empty(0, np.int64)
    joined = b" ".join(texts)
    dots = joined.count(b".")
    count = len(texts)
    if joined.translate(None, b"0123456789. ") == b"":
        if dots == 0 and max(map(len, texts)) <= SAFE_DIGITS:
            return _integers(joined, count) * 1000
        if dots == count and max(map(len, texts)) <= SAFE_DIGITS + 4 and _three_decimals(joined, count):
            return _integers(joined.replace(b".", b""), count)
    try:
        return np.array([_nanoseconds(bytes(text)) for text in texts], np.int64)
    except OverflowError:
        raise ValueError("a time does not fit into 64 bits of nanoseconds") from None


def _integers(text: bytes, count: int) -> NDArray[np.int64]:
    values = np.fromstring(text.decode("ascii"), dtype=np.int64, sep=" ")
    if len(values) != count:
        raise ValueError("a time is missing")
    return values


def _three_decimals(joined: bytes, count: int) -> bool:
    symbols = np.frombuffer(joined + b" ", np.uint8)
    ends = np.flatnonzero(symbols == ord(" "))
    return len(ends) == count and bool((symbols[ends - 4] == ord(".")).all())


def _nanoseconds(text: bytes) -> int:
    text = text.strip(b'" ')
    try:
        return int(Decimal(text.decode("ascii")) * 1000)
    except (InvalidOperation, UnicodeDecodeError, OverflowError, ValueError):
        raise ValueError(f"not a time: {text[:40]!r}") from None
