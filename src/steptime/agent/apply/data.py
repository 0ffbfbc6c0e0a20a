"""Section `data`: worker processes, pinning, and a thread that prepares batches, for the training DataLoader.

The training loader is one that is iterated with gradients enabled, and shuffles if any loader of the script does:
scripts evaluate under `no_grad`, and an evaluation loader does not shuffle. Settings are given when it is iterated.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, final

import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from steptime.agent.apply.ground import Ground
from steptime.agent.apply.prefetch import PrefetchIterator, hold, refusal, release, visible_generator
from steptime.agent.apply.randomness import draws_randomly

__all__ = ["apply", "hold", "release"]


def apply(section: Mapping[str, Any], ground: Ground) -> None:
    """Replaces `DataLoader.__iter__`; the constructor is only watched, to know whether the script shuffles."""
    feeding = _Feeding(section, ground)
    construct, iterate = DataLoader.__init__, DataLoader.__iter__

    @functools.wraps(construct)
    def __init__(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:  # noqa: N807
        construct(self, *args, **kwargs)
        feeding.any_shuffles = feeding.any_shuffles or shuffles(self)

    @functools.wraps(iterate)
    def __iter__(self: DataLoader[Any]) -> Any:  # noqa: N807
        if not torch.is_grad_enabled() or (feeding.any_shuffles and not shuffles(self)):
            return iterate(self)
        return feeding.iterator(self, iterate)

    ground.patches.replace(DataLoader, "__init__", __init__)
    ground.patches.replace(DataLoader, "__iter__", __iter__)


def shuffles(loader: DataLoader[Any]) -> bool:
    """Whether the samples come in another order than stored."""
    if isinstance(loader.dataset, IterableDataset):
        return False
    inner = getattr(loader.batch_sampler, "sampler", None)
    sampler = inner if inner is not None else loader.sampler
    if isinstance(sampler, SequentialSampler):
        return False
    # DistributedSampler says so itself; any other sampler was chosen for its order
    return bool(getattr(sampler, "shuffle", True))


@final
class _Feeding:
    """What is done to the loaders of one script."""

    def __init__(self, section: Mapping[str, Any], ground: Ground) -> None:
        self.any_shuffles = False
        self._section = section
        self._ground = ground
        self._treated: dict[int, bool] = {}
        self._told: set[str] = set()

    def iterator(self, loader: DataLoader[Any], iterate: Any) -> Any:
        """The loader's iterator under the plan's settings."""
        first = id(loader) not in self._treated
        if first:
            self._treated[id(loader)] = True
            self._set_workers(loader)
            self._set_pinning(loader)
        self._keep_stream(loader)
        inner = iterate(loader)
        depth = int(self._section.get("prefetch_thread", 0))
        if depth == 0:
            return inner
        reason = refusal(loader)
        if reason is not None:
            self._tell("prefetch_thread", False, reason)
            return inner

        def tell(ok: bool, why: str) -> None:
            self._tell("prefetch_thread", ok, why)

        return PrefetchIterator(inner, depth, tell, visible_generator(loader))

    def _set_workers(self, loader: DataLoader[Any]) -> None:
        workers = self._section.get("workers")
        if workers is not None:
            if isinstance(loader.dataset, IterableDataset):
                self._tell("workers", False, "each worker would repeat an IterableDataset's samples")
            elif draws_randomly(loader.dataset):
                self._tell("workers", False, "the data set draws random numbers: in workers it would draw others")
            else:
                was, loader.num_workers = loader.num_workers, workers
                if workers > 0 and loader.prefetch_factor is None:
                    loader.prefetch_factor = 2
                elif workers == 0:
                    loader.prefetch_factor = None
                    object.__setattr__(loader, "persistent_workers", False)
                self._tell("workers", True, f"{workers} workers, were {was}")
        for name in ("prefetch_factor", "persistent_workers"):
            value = self._section.get(name)
            if value is None:
                continue
            if loader.num_workers == 0:
                self._tell(name, False, "the loader has no workers")
            else:
                object.__setattr__(loader, name, value)
                self._tell(name, True, f"{value}")

    def _set_pinning(self, loader: DataLoader[Any]) -> None:
        value = self._section.get("pin_memory")
        if value is None:
            return
        if value and not torch.accelerator.is_available():
            self._tell("pin_memory", False, "there is no accelerator")
            return
        loader.pin_memory = value
        self._tell("pin_memory", True, f"{value}")

    def _keep_stream(self, loader: DataLoader[Any]) -> None:
        """A new iterator draws a seed for its workers from torch's generator, a kept one does not: draw it for it.

        Without this, keeping the workers would shift every random number after the first epoch.
        """
        if self._section.get("persistent_workers") and loader.persistent_workers and loader._iterator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def _tell(self, name: str, ok: bool, why: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._ground.report(f"data.{name}", ok, why)
