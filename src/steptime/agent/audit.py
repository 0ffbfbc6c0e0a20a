"""What the training computes, recorded so that two runs can be held against each other.

A remedy may change how a step is computed, never what: optimizer settings step by step, the data and its order, the
dropout that is active, the gradient clipping, the backward calls. One `audit` event, a few kilobytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from typing import Any

from steptime.agent.journal import Journal

BATCHES = 8
VALUES = 8
SETTINGS = ("lr", "weight_decay", "betas", "momentum", "eps", "nesterov", "amsgrad", "maximize", "dampening", "alpha")


class _Sequence:
    """A digest of a sequence of settings, with its first few distinct values for people to read."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._previous = ""
        self.count = 0
        self.first: list[Any] = []
        self.changes = 0
        self.digests: dict[int, str] = {}

    def add(self, value: Any) -> None:
        text = json.dumps(value, default=float)
        self._digest.update(text.encode())
        self.count += 1
        if self.count & (self.count - 1) == 0:
            # at powers of two, so that runs of different lengths have a common prefix to compare
            self.digests[self.count] = self._digest.hexdigest()
        if text != self._previous:
            self._previous = text
            self.changes += 1
            if len(self.first) < VALUES:
                self.first.append(json.loads(text))

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "changes": self.changes, "first": self.first, "digests": self.digests}


class Audit:
    """Listens to the optimizer, the loader, the clipping and the dropout of one process."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._settings: dict[int, _Sequence] = {}
        self._loaders: dict[int, dict[str, Any]] = {}
        self._current: dict[str, Any] | None = None
        self._clips = 0
        self._clip_norms: set[float] = set()
        self._step_backwards = 0
        self._backwards = _Sequence()
        self._dropouts: dict[str, Any] | None = None
        self._modules: dict[int, Any] = {}
        self._steps = 0
        self._patch()

    def backward(self) -> None:
        """One backward call."""
        self._step_backwards += 1

    def optimizer_step(self, optimizer: Any) -> None:
        """The settings with which this step is taken."""
        key = id(optimizer)
        if key not in self._optimizers:
            groups = optimizer.param_groups
            self._optimizers[key] = {
                "type": type(optimizer).__name__,
                "parameters": sum(len(group["params"]) for group in groups),
                "elements": sum(p.numel() for group in groups for p in group["params"]),
                "dtypes": sorted({str(p.dtype) for group in groups for p in group["params"]}),
            }
            self._settings[key] = _Sequence()
        self._settings[key].add(
            [{name: _plain(group[name]) for name in SETTINGS if name in group} for group in optimizer.param_groups]
        )

    def step_closed(self) -> None:
        """A training step has ended; the batches since the last one were training batches."""
        self._backwards.add(self._step_backwards)
        self._step_backwards = 0
        if self._current is not None:
            self._current["training_steps"] += 1
        if self._steps == 0:
            self._dropouts = _dropouts_in(self._modules.values())
            self._modules.clear()
        self._steps += 1

    def write(self) -> None:
        """Appends the `audit` event."""
        loaders = [
            {k: v for k, v in loader.items() if not k.startswith("_")}
            for loader in self._loaders.values()
            if loader["training_steps"]
        ]
        self._journal.event(
            "audit",
            steps=self._steps,
            optimizers=[
                {**facts, "settings": self._settings[key].to_json()} for key, facts in self._optimizers.items()
            ],
            loaders=loaders,
            dropout=self._dropouts,
            clipping={"calls": self._clips, "max_norms": sorted(self._clip_norms)[:VALUES]},
            backward_calls_per_step=self._backwards.to_json(),
        )

    def _patch(self) -> None:
        import torch
        from torch.nn.utils import clip_grad

        iterator: Any = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
        start, following = iterator.__init__, iterator.__next__
        owner: dict[int, int] = {}

        @functools.wraps(start)
        def begin(this: Any, loader: Any) -> None:
            start(this, loader)
            owner[id(this)] = self._loader(loader)

        @functools.wraps(following)
        def advance(this: Any) -> Any:
            record = self._loaders.get(owner.get(id(this), -1))
            try:
                batch = following(this)
            except StopIteration:
                if record is not None:
                    record["epochs"] += 1
                    record["samples_by_epoch"] = [*record["samples_by_epoch"], record["_samples"]][:VALUES]
                    record["_samples"] = 0
                raise
            if record is not None and torch.is_grad_enabled():
                self._current = record
                record["_samples"] += _samples_in(batch)
                if len(record["batches"]) < BATCHES:
                    record["batches"].append(_digest(batch))
            return batch

        iterator.__init__, iterator.__next__ = begin, advance

        clip = clip_grad.clip_grad_norm_

        @functools.wraps(clip)
        def clipped(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            self._clips += 1
            self._clip_norms.add(float(max_norm))
            return clip(parameters, max_norm, *args, **kwargs)

        clip_grad.clip_grad_norm_ = clipped
        torch.nn.utils.clip_grad_norm_ = clipped

        dropout: Any = torch.nn.modules.dropout._DropoutNd
        initialise = dropout.__init__

        @functools.wraps(initialise)
        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            initialise(this, *args, **kwargs)
            if self._steps == 0:
                self._modules[id(this)] = this

        dropout.__init__ = made

    def _loader(self, loader: Any) -> int:
        key = id(loader)
        dataset, sampler = loader.dataset, loader.sampler
        self._loaders.setdefault(
            key,
            {
                "length": len(loader) if hasattr(dataset, "__len__") else None,
                "dataset_length": len(dataset) if hasattr(dataset, "__len__") else None,
                "batch_size": getattr(loader.batch_sampler, "batch_size", loader.batch_size),
                "drop_last": bool(getattr(loader.batch_sampler, "drop_last", loader.drop_last)),
                "sampler": type(sampler).__name__,
                "training_steps": 0,
                "epochs": 0,
                "samples_by_epoch": [],
                "batches": [],
                "_samples": 0,
                "_loader": loader,  # held, so that its id is not given to another one
            },
        )
        return key


def _dropouts_in(modules: Any) -> dict[str, Any]:
    active = [module for module in modules if module.training]
    return {"active": len(active), "sum_p": round(sum(float(module.p) for module in active), 9)}


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, str)) or value is None else float(value)


def _tensors(batch: Any) -> list[Any]:
    if hasattr(batch, "detach"):
        return [batch]
    if isinstance(batch, dict) or hasattr(batch, "items"):
        return [tensor for _, item in sorted(batch.items(), key=lambda pair: str(pair[0])) for tensor in _tensors(item)]
    if isinstance(batch, (list, tuple)):
        return [tensor for item in batch for tensor in _tensors(item)]
    return []


def _samples_in(batch: Any) -> int:
    return next((int(tensor.shape[0]) for tensor in _tensors(batch) if tensor.dim()), 0)


def _digest(batch: Any) -> dict[str, Any]:
    """Shapes, dtypes and a hash of the contents, independent of strides and device."""
    import torch

    digest = hashlib.blake2b(digest_size=16)
    shapes = []
    for tensor in _tensors(batch):
        host = tensor.detach().to("cpu").contiguous()
        shapes.append([str(host.dtype).removeprefix("torch."), *host.shape])
        digest.update(repr(shapes[-1]).encode())
        digest.update(memoryview(host.reshape(-1).view(torch.uint8).numpy()) if host.numel() else b"")
    return {"tensors": shapes, "blake2b": digest.hexdigest()}
