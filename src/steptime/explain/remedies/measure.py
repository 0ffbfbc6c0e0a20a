"""Micro-measurements for predictions, run in an interpreter of their own with the script's torch: `measure.py THREADS`.

Reads a JSON list of requests on stdin, writes a JSON list of results on stdout: seconds for one call, forward and
backward together, the median of interleaved repeats; `{"error": ...}` where a request could not be measured. Standard
library and torch only: the interpreter may be another environment's, where steptime is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_BUDGET_S = 0.35
"""Time for one request: enough for some ten repeats of an op of a small model."""
_CACHE_FLOATS = 8 * 2**20
"""32 MiB: what the rest of a step brings through the caches of a small machine."""
_TORCH_OR_PARALLEL: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "torch_s": {},
    "parallel_s": {"kernels": {"dropout": "parallel"}},
}
"""What a block costs as torch has it, and where the masks are steptime's already."""


def _offer_steptime() -> None:
    root = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        "steptime", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    if spec is None or spec.loader is None:
        raise ImportError("steptime's own files cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["steptime"] = module
    spec.loader.exec_module(module)


def _medians(variants: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of each variant; the variants take turns, so that drift hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for run in variants.values():
        run()
    end = time.perf_counter() + _BUDGET_S
    while time.perf_counter() < end or len(next(iter(seconds.values()))) < 5:
        for name, run in variants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: sorted(values)[len(values) // 2] for name, values in seconds.items()}


def _dropout(request: Mapping[str, Any]) -> dict[str, float]:
    import torch

    from steptime.kernels.dropout import dropout  # the steptime that _offer_steptime put there

    x = torch.randn(request["shape"], requires_grad=True)
    grad = torch.randn(request["shape"])

    def of(function: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            x.grad = None
            function(x, 0.1, True).backward(grad)

        return run

    return _medians({"torch_s": of(torch.nn.functional.dropout), "parallel_s": of(dropout)})


def _gelu(request: Mapping[str, Any]) -> dict[str, float]:
    import torch

    from steptime.kernels.gelu import gelu

    x = torch.randn(request["shape"], requires_grad=True)
    grad = torch.randn(request["shape"])

    def of(function: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            x.grad = None
            function(x).backward(grad)

        return run

    return _medians({"torch_s": of(torch.nn.functional.gelu), "fast_s": of(gelu)})


def _in_a_step(
    forward: Callable[[], Any], grad: Any, plans: Mapping[str, Mapping[str, Mapping[str, str]]]
) -> dict[str, float]:
    """Median seconds of `forward` and its backward under each plan. Both begin with cold caches, as in a step, where
    all other layers were between: what a variant keeps in memory costs it here what it costs there.
    """
    import torch

    from steptime.agent.apply import apply_plan

    others = torch.zeros(_CACHE_FLOATS)
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    end = time.perf_counter() + 2 * _BUDGET_S
    while time.perf_counter() < end or len(next(iter(seconds.values()))) < 6:
        for name, plan in plans.items():
            undo = apply_plan(plan, lambda *told: None)
            others.add_(1.0)
            times = [time.perf_counter()]
            out = forward()
            times.append(time.perf_counter())
            undo()
            others.add_(1.0)
            times.append(time.perf_counter())
            out.backward(grad)
            times.append(time.perf_counter())
            seconds[name].append(times[1] - times[0] + times[3] - times[2])
    # the first is a warm-up
    return {name: sorted(values[1:])[len(values) // 2 - 1] for name, values in seconds.items()}


def _feed_forward(request: Mapping[str, Any]) -> dict[str, float]:
    import torch

    rows, width, hidden, p = (request[name] for name in ("rows", "width", "hidden", "p"))
    layer = torch.nn.TransformerEncoderLayer(width, 1, hidden, p, request["activation"], batch_first=True)
    x = torch.randn(rows, 1, width, requires_grad=True)
    plans = {**_TORCH_OR_PARALLEL, "fused_s": {"kernels": {"feed_forward": "fused"}}}
    return _in_a_step(lambda: layer._ff_block(x), torch.randn(rows, 1, width), plans)


def _self_attention(request: Mapping[str, Any]) -> dict[str, float]:
    import torch

    batches, heads, tokens, depth = (request[name] for name in ("B", "H", "T", "D"))
    attention = torch.nn.MultiheadAttention(heads * depth, heads, dropout=request["p"], batch_first=True)
    x = torch.randn(batches, tokens, heads * depth, requires_grad=True)
    plans = {**_TORCH_OR_PARALLEL, "fused_s": {"kernels": {"attention": "fused"}}}
    return _in_a_step(lambda: attention(x, x, x, need_weights=False)[0], torch.randn_like(x), plans)


def _attention(request: Mapping[str, Any]) -> dict[str, float]:
    import torch

    from steptime.kernels.attention import scaled_dot_product_attention as fused

    b, h, t, s, d = (request[name] for name in ("B", "H", "T", "S", "D"))
    # as nn.MultiheadAttention makes them: (T, B, H*D) viewed as (B, H, T, D)
    q, k, v = (torch.randn(n, b * h, d).transpose(0, 1).reshape(b, h, n, d).requires_grad_() for n in (t, s, s))
    grad = torch.randn(b, h, t, d)

    def of(function: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            q.grad = k.grad = v.grad = None
            function(q, k, v, dropout_p=request["p"]).backward(grad)

        return run

    return _medians({"torch_s": of(torch.nn.functional.scaled_dot_product_attention), "fused_s": of(fused)})


def _optimizer(request: Mapping[str, Any]) -> dict[str, float]:
    import torch

    kind = getattr(torch.optim, request["class"])
    options = {"momentum": request["momentum"]} if request.get("momentum") else {}
    made: dict[str, Callable[[], Any]] = {}
    for name, flags in (("script_s", {}), ("foreach_s", {"foreach": True}), ("fused_s", {"fused": True})):
        parameters = [torch.nn.Parameter(torch.randn(shape) * 0.01) for shape in request["shapes"]]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        try:
            optimizer = kind(parameters, lr=1e-3, **options, **flags)
            optimizer.step()
        except (TypeError, RuntimeError, ValueError):
            continue  # this class has no such implementation here
        made[name] = optimizer.step
    return _medians(made)


def _matmul(request: Mapping[str, Any]) -> dict[str, float]:
    import torch

    a, b = torch.randn(request["a"]), torch.randn(request["b"])
    product = torch.bmm if a.dim() == 3 else torch.mm

    def medium() -> None:
        torch.set_float32_matmul_precision("medium")
        product(a, b)
        torch.set_float32_matmul_precision("highest")

    return _medians(
        {
            "fp32_s": lambda: product(a, b),
            "bf16_s": lambda: product(a.bfloat16(), b.bfloat16()),
            "medium_s": medium,
        }
    )


def _compiler(request: Mapping[str, Any]) -> dict[str, Any]:
    import os

    header = Path(sysconfig.get_path("include")) / "Python.h"
    compiler = next((c for c in (os.environ.get("CXX"), "g++", "clang++", "c++") if c and shutil.which(c)), None)
    if compiler is None:
        return {"unavailable": "no C++ compiler is installed"}
    return {"unavailable": "" if header.exists() else f"Python's header files are not installed ({header})"}


def _page_fault(request: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a minor fault: writing to fresh pages, less writing to them again; the lower quartile of mappings."""
    import mmap

    size = 1 << 20
    payload = b"1" * size
    seconds = []
    for _ in range(15):
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
            times = [time.perf_counter()]
            for _ in range(2):
                memory.seek(0)
                memory.write(payload)
                times.append(time.perf_counter())
            seconds.append((times[1] - times[0]) - (times[2] - times[1]))
    return {"page_s": max(sorted(seconds)[len(seconds) // 4], 0.0) * mmap.PAGESIZE / size}


_KINDS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "dropout": _dropout,
    "attention": _attention,
    "gelu": _gelu,
    "feed_forward": _feed_forward,
    "self_attention": _self_attention,
    "optimizer": _optimizer,
    "matmul": _matmul,
    "compiler": _compiler,
    "page_fault": _page_fault,
}


def _main() -> None:
    import torch

    _offer_steptime()
    torch.set_num_threads(int(sys.argv[1]))
    results = []
    for request in json.load(sys.stdin):
        try:
            results.append(_KINDS[request["kind"]](request))
        except Exception as error:  # a request that fails must not take the others with it
            results.append({"error": f"{type(error).__name__}: {error}"})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    _main()
