"""Applies plans to this very process, and takes them back after each test."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from steptime.agent.apply import apply_plan


@dataclass
class Applied:
    """Applies plans and collects what they report."""

    told: list[tuple[str, bool, str]] = field(default_factory=list)
    undo: list[Any] = field(default_factory=list)

    def __call__(self, **sections: dict[str, Any]) -> Applied:
        self.undo.append(apply_plan(sections, lambda *one: self.told.append(one)))
        return self

    def back(self) -> None:
        while self.undo:
            self.undo.pop()()

    def ok(self, name: str) -> bool | None:
        """The last word on a field, None when there was none."""
        return next((ok for told, ok, _ in reversed(self.told) if told == name), None)

    def why(self, name: str) -> str:
        return next((why for told, _, why in reversed(self.told) if told == name), "")


@pytest.fixture
def applied() -> Iterator[Applied]:
    one = Applied()
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    random.seed(0)
    yield one
    one.back()
    torch.set_num_threads(threads)
