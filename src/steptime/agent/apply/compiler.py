"""Section `compiler`: the trained modules, or their repeated layers, run their training calls compiled.

Evaluation stays eager: it would pay for graphs of its own, and scripts evaluate too rarely to earn that back.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from steptime.agent.apply.ground import Ground, seconds_since
from steptime.agent.apply.roots import Around, Inner, Treatment, unwrapped

ORDER = 90


def apply(section: Mapping[str, Any], ground: Ground) -> None:
    """Compiles each root at its first training call; refused here when no compiler or no Python headers exist."""
    mode = section.get("mode", "none")
    if mode == "none":
        return
    reason = unavailable()
    if reason is not None:
        ground.report("compiler.mode", False, reason)
        return
    per_block = section.get("scope", "model") == "blocks"
    seconds = [0.0, 0.0]  # of compilation so far; graphs

    def report(name: str, spent_s: float, graphs: int) -> None:
        seconds[0] += spent_s
        seconds[1] += graphs
        ground.report("compiler.mode", True, f"{name} compiled ({mode}); {seconds[1]:.0f} graph(s)")
        ground.report("compiler.seconds", True, f"{seconds[0]:.2f}")

    def found(root: nn.Module) -> Around | None:
        target = unwrapped(root)
        if _compiled_already(root):
            ground.report("compiler.mode", False, "the script compiles its model itself")
            return None
        blocks = repeated_layers(target)
        if per_block and not blocks:
            ground.report("compiler.mode", False, f"{type(target).__name__} has no repeated layers in a ModuleList")
            return None
        for module in blocks if per_block else [target] if target is not root else []:
            ground.roots.calls.wrap(module, ORDER, _compiled(module, mode, report, ground))
        if per_block:
            ground.report("compiler.scope", True, f"{len(blocks)} layers of {type(target).__name__}")
            return None
        return _compiled(target, mode, report, ground) if target is root else None

    ground.roots.treat(Treatment(order=ORDER, found=found))


def unavailable() -> str | None:
    """Why torch.compile cannot work here, None when it should."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    if not any(name and shutil.which(name.split()[0]) for name in names):
        return "torch.compile needs a C++ compiler, and none was found"
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    if not os.path.exists(header):
        return f"torch.compile needs Python's header files, and {header} is not there"
    return None


def repeated_layers(root: nn.Module) -> list[nn.Module]:
    """The children of ModuleLists whose children are all of one class, outermost lists only."""
    found: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        for child in module.children():
            layers = list(child.children())
            if isinstance(child, nn.ModuleList) and layers and len({type(one) for one in layers}) == 1:
                found.extend(layers)
            else:
                look(child)

    look(root)
    return found


def _compiled_already(root: nn.Module) -> bool:
    return any(
        type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        for module in root.modules()
    )


def _compiled(module: nn.Module, mode: str, report: Callable[[str, float, int], None], ground: Ground) -> Around:
    import torch._functorch.config as functorch_config
    from torch._dynamo.external_utils import wrap_inline
    from torch._dynamo.utils import counters

    # without the wrapper dynamo skips modules whose forward is torch's own code, such as nn.Sequential, in silence
    run: Inner = torch.compile(wrap_inline(module._call_impl), mode=None if mode == "default" else mode)
    kind = type(module).__name__
    stats = counters["stats"]
    broken = False

    def around(module: nn.Module, inner: Inner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal broken
        if broken or not module.training or not torch.is_grad_enabled():
            return inner(*args, **kwargs)
        graphs = stats["unique_graphs"]
        start = time.perf_counter_ns()
        try:
            # the backward is compiled with the forward: a failure there could no longer be mended
            with functorch_config.patch(force_non_lazy_backward_lowering=True):
                output = run(*args, **kwargs)
        except Exception as error:
            if not _is_compile_error(error):
                raise
            broken = True
            ground.report("compiler.mode", False, f"{kind} did not compile: {_first_line(error)}")
            return inner(*args, **kwargs)
        if stats["unique_graphs"] != graphs:
            report(kind, seconds_since(start), stats["unique_graphs"] - graphs)
        elif graphs == 0:
            broken = True
            ground.report("compiler.mode", False, f"torch.compile found nothing to compile in {kind}")
        return output

    return around


def _is_compile_error(error: BaseException | None) -> bool:
    while error is not None:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "torch._functorch")):
            return True
        error = error.__cause__
    return False


def _first_line(error: BaseException) -> str:
    """The error in a line: of a wrapper's text the first two lines, since the cause is in the second."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:200]}" if lines else type(error).__name__
