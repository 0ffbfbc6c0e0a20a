"""Exact times: Kineto writes microseconds as decimal text, a Timeline holds integer nanoseconds.

A float64 near 1.7e15 us (the epoch) resolves 0.25 us only, so that no step on the way may be a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np
from numpy.typing import NDArray


def to_nanoseconds(texts: Sequence[msgspec.Raw]) -> NDArray[np.int64]:
    """JSON numbers of microseconds ("12", "12.345", "-1.-500", "1.5e3", also quoted) as integer nanoseconds.

    Digits beyond the nanosecond are cut off.

    Raises:
        ValueError: a text that is not a number, or does not fit int64.
    """
    if not texts:
        return np.empty(0, np.int64)
    joined = b" ".join(texts)
    dots = joined.count(b".")
    count = len(texts)
    with np.errstate(all="raise"):
        if joined.translate(None, b"0123456789. ") == b"":
            if dots == 0:
                return _integers(joined, count) * 1000
            # every number has three decimals exactly when each dot stands four bytes before a separator
            if dots == count and (joined + b" ")[4:].count(b" ") == count and _three_decimals(joined, count):
                return _integers(joined.replace(b".", b""), count)
    return np.array([_nanoseconds(bytes(text)) for text in texts], np.int64)


def _integers(text: bytes, count: int) -> NDArray[np.int64]:
    values = np.fromstring(text.decode("ascii"), dtype=np.int64, sep=" ")
    if len(values) != count:
        raise ValueError("a time is missing or does not fit into 64 bits")
    return values


def _three_decimals(joined: bytes, count: int) -> bool:
    symbols = np.frombuffer(joined + b" ", np.uint8)
    ends = np.flatnonzero(symbols == ord(" "))
    return len(ends) == count and bool((symbols[ends - 4] == ord(".")).all())


def _nanoseconds(text: bytes) -> int:
    text = text.strip(b'" ')
    whole, dot, fraction = text.partition(b".")
    if not dot and whole.lstrip(b"-").isdigit():
        return int(whole) * 1000
    if fraction.startswith(b"-"):  # Kineto's "{}.{:03}" of a negative number: -1500 ns is "-1.-500"
        return int(whole) * 1000 + int(fraction)
    try:
        return int(Decimal(text.decode("ascii")) * 1000)
    except (InvalidOperation, UnicodeDecodeError, OverflowError, ValueError):
        raise ValueError(f"not a time: {text[:40]!r}") from None
