"""C++ sources become a shared library, by whatever compiler the machine has, once.

    library = compile_library("dropout", [folder / "dropout.cpp", folder / "philox.h"])

The sources have a plain C interface (ctypes), so neither Python's headers nor torch's are needed, and a build takes
about a second. ctypes releases the GIL during each call.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from steptime.errors import SteptimeError

_COMPILERS = ("c++", "g++", "clang++")
_BUILD_TIMEOUT_S = 120

# -ffast-math is not used: gcc then links crtfastmath.o, which turns denormals off for the whole process.
_BASE = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fvisibility=hidden",
)
_TUNINGS = (("-march=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())


class KernelUnavailable(SteptimeError):  # noqa: N818 - a state of the machine, not a fault of the caller
    """A compiled operation cannot be had on this machine; `what` is the reason in one line."""


def cache_folder() -> Path:
    """$STEPTIME_CACHE, else $XDG_CACHE_HOME/steptime, else ~/.cache/steptime; the libraries are in its `kernels`."""
    chosen = os.environ.get("STEPTIME_CACHE")
    if chosen:
        return Path(chosen) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "steptime" / "kernels"


def find_compiler() -> list[str]:
    """The command of the first C++ compiler there is: $CXX, c++, g++, clang++.

    Raises:
        KernelUnavailable: there is none.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen and shutil.which(chosen[0]):
        return chosen
    for name in _COMPILERS:
        if shutil.which(name):
            return [name]
    raise KernelUnavailable("no C++ compiler was found", mend="install g++ or clang++, or set CXX")


def compile_library(name: str, sources: Sequence[Path], flags: Sequence[str] = ()) -> ctypes.CDLL:
    """The library built from `sources`, from the cache if these sources were built here before.

    Args:
        name: the stem of the library's file.
        sources: C++ files to compile, and the headers they include (only hashed).
        flags: compiler flags beside the usual ones.

    Raises:
        KernelUnavailable: no compiler, a failed build, or a cache folder that cannot be written.
    """
    compiler = find_compiler()
    openmp = openmp_is_shared()
    key = _key(compiler, sources, flags, openmp)
    target = cache_folder() / f"{name}-{key}.so"
    if target.exists():
        try:
            return ctypes.CDLL(str(target))
        except OSError:
            pass  # damaged, or from a machine that shares the home folder: built anew
    _build(compiler, target, sources, flags, openmp)
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise KernelUnavailable(f"the library that {compiler[0]} built does not load: {error}") from error


def openmp_is_shared() -> bool:
    """Whether -fopenmp would join the OpenMP runtime that torch has already loaded in this process.

    Two OpenMP runtimes mean two pools of spinning threads on the same cores. The loader shares a runtime by its
    SONAME, so only a loaded `libgomp.so.1` will do (recent torch wheels; older ones carry a hashed name). Otherwise
    the sources use std::thread.
    """
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return False
    return any(line.rpartition("/")[2].startswith("libgomp.so.1") for line in maps.splitlines() if "libgomp" in line)


def why_unavailable(library: Callable[[], ctypes.CDLL]) -> str | None:
    """None when `library` builds and loads here, else the reason in one line."""
    try:
        library()
    except KernelUnavailable as unavailable:
        return str(unavailable)
    return None


def _key(compiler: list[str], sources: Sequence[Path], flags: Sequence[str], openmp: bool) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    facts = [*_BASE, *flags, str(openmp), *compiler, _compiler_version(tuple(compiler)), _cpu()]
    digest.update("\0".join(facts).encode())
    return digest.hexdigest()[:24]


@functools.cache
def _compiler_version(compiler: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelUnavailable(f"the compiler {compiler[0]} does not run: {error}") from error
    return done.stdout


def _cpu() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    wanted = ("flags", "Features", "CPU implementer", "CPU part", "vendor_id", "cpu family", "model")
    facts = dict(line.split(":", 1) for line in reversed(lines) if line.startswith(wanted) and ":" in line)
    return repr((platform.system(), platform.machine(), sorted(facts.items())))


def _build(compiler: list[str], target: Path, sources: Sequence[Path], flags: Sequence[str], openmp: bool) -> None:
    inputs = [str(source) for source in sources if source.suffix != ".h"]
    reason = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.stem}-") as folder:
            for tuning in _TUNINGS:
                if "-fopenmp" in tuning and not openmp:
                    continue
                output = Path(folder) / target.name
                reason = _run([*compiler, *_BASE, *tuning, *flags, *inputs, "-o", str(output)])
                # clang's -fopenmp brings its own libomp
                if not reason and ("-fopenmp" not in tuning or b"libgomp.so.1" in output.read_bytes()):
                    with output.open("rb") as built:
                        os.fsync(built.fileno())
                    output.replace(target)
                    return
    except OSError as error:
        raise KernelUnavailable(
            f"the library cannot be written: {error}", where=str(target.parent), mend="set STEPTIME_CACHE to a folder"
        ) from error
    raise KernelUnavailable(f"{compiler[0]} could not build {inputs[0]}: {reason}")


def _run(command: list[str]) -> str:
    """Why the command failed, in one line; empty when it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no result after {_BUILD_TIMEOUT_S} s"
    if done.returncode == 0:
        return ""
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    return (errors or done.stderr.splitlines() or [f"exit code {done.returncode}"])[0].strip()
