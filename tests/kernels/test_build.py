"""The compiled library: found, built once, told in one line when it cannot be."""

from __future__ import annotations

import ctypes
import functools
import math
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from steptime.kernels import build
from steptime.kernels.build import KernelUnavailable, compile_library

TWICE = 'extern "C" __attribute__((visibility("default"))) int twice(int x) { return 2 * x; }\n'


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "twice.cpp"
    path.write_text(TWICE)
    return path


def test_a_library_is_built_once_and_again_when_its_source_changes(cache, source):
    assert compile_library("twice", [source]).twice(21) == 42
    (built,) = cache.iterdir()
    written = built.stat().st_mtime_ns
    compile_library("twice", [source])
    assert built.stat().st_mtime_ns == written
    source.write_text(TWICE.replace("2 * x", "x + x + 1"))
    assert compile_library("twice", [source]).twice(21) == 43
    assert len(list(cache.iterdir())) == 2  # and no temporary folder is left


def test_a_changed_header_or_flag_is_another_library(cache, source, tmp_path):
    header = tmp_path / "some.h"
    for content, flags in (("// a", ()), ("// b", ()), ("// b", ("-DX=1",))):
        header.write_text(content)
        compile_library("twice", [source, header], flags)
    assert len(list(cache.iterdir())) == 3


def test_no_compiler_is_one_line(cache, source, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(KernelUnavailable, match=r"no C\+\+ compiler was found; install") as raised:
        compile_library("twice", [source])
    assert "\n" not in str(raised.value)


def test_a_failed_build_names_the_compilers_first_error_and_leaves_nothing(cache, source):
    source.write_text("int f( {\n")
    with pytest.raises(KernelUnavailable, match=r"could not build .*error") as raised:
        compile_library("twice", [source])
    assert "\n" not in str(raised.value)
    assert list(cache.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path / "file"))
    with pytest.raises(KernelUnavailable, match=r"cannot be written.*STEPTIME_CACHE"):
        compile_library("twice", [source])


def test_a_damaged_library_is_built_anew(cache, source):
    compile_library("twice", [source])
    (built,) = cache.iterdir()
    damaged = cache / "copy"
    damaged.write_bytes(b"not a library")
    damaged.replace(built)
    assert compile_library("twice", [source]).twice(4) == 8


def test_builds_at_the_same_time_all_work(cache, source):
    results: list[int] = []

    def make() -> None:
        results.append(compile_library("twice", [source]).twice(1))

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [2, 2, 2]
    assert len(list(cache.iterdir())) == 1


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("STEPTIME_CACHE", "/a")
    assert build.cache_folder() == Path("/a/kernels")
    monkeypatch.delenv("STEPTIME_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert build.cache_folder() == Path("/b/steptime/kernels")


def test_without_a_shared_openmp_runtime_the_threads_are_the_librarys_own(cache, tmp_path, monkeypatch):
    """The std::thread path gives the masks of the OpenMP path."""
    monkeypatch.setattr(build, "openmp_is_shared", lambda: False)
    folder = Path(build.__file__).parent
    sources = [folder / "dropout/dropout.cpp", *(folder / "native").glob("*.h")]
    library = compile_library("dropout", sources)
    assert b"libgomp" not in next(cache.iterdir()).read_bytes()
    from steptime.kernels.dropout import native

    x = torch.ones(100_000)
    ours, theirs = torch.empty_like(x), torch.empty_like(x)
    native.drop(x, theirs, None, 0.3, 7)
    pointer = ctypes.c_void_p
    library.steptime_drop_float32(
        pointer(x.data_ptr()),
        pointer(ours.data_ptr()),
        pointer(),
        ctypes.c_int64(x.numel()),
        ctypes.c_uint64(7),
        ctypes.c_uint32(native.threshold(0.3)),
        ctypes.c_double(1 / 0.7),
        3,
    )
    assert torch.equal(ours, theirs)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="-march=x86-64 is the narrow build")
def test_masks_do_not_depend_on_the_vector_width(cache, monkeypatch):
    """Built for SSE2 only, the operations draw the masks that the machine's widest vectors draw."""
    from steptime.kernels import attention, feed_forward
    from steptime.kernels.attention import native as attention_native
    from steptime.kernels.dropout import native as dropout_native
    from steptime.kernels.feed_forward import native as feed_forward_native

    x = torch.ones(1000)
    sizes = ((48, 32), (48,), (16, 48), (16,))
    block = feed_forward.Block(*(torch.sin(torch.arange(math.prod(size))).reshape(size) for size in sizes))

    def drawn():
        dropout_native.drop(x, out := torch.empty_like(x), None, 0.3, 11)
        torch.manual_seed(3)
        q = torch.randn(1, 2, 61, 24)
        rows = feed_forward.feed_forward(torch.randn(70, 32), block, "gelu", p1=0.3, p2=0.3)
        return out, attention.scaled_dot_product_attention(q, q, q, None, 0.3, True), rows

    wide = drawn()

    def narrow(name, sources, flags=()):
        return compile_library(name, sources, [*flags, "-march=x86-64"])

    built = set(cache.glob("*"))
    for native in (dropout_native, attention_native, feed_forward_native):
        monkeypatch.setattr(native, "compile_library", narrow)
        monkeypatch.setattr(native, "library", functools.cache(native.library.__wrapped__))
    narrowly = drawn()
    assert len(set(cache.iterdir()) - built) == 3
    assert torch.equal(wide[0], narrowly[0])
    torch.testing.assert_close(wide[1:], narrowly[1:], rtol=1e-5, atol=1e-5)


@pytest.mark.spawned
def test_the_library_joins_torchs_openmp_runtime_or_uses_none():
    """Never two OpenMP runtimes in a process."""
    code = (
        "import torch; from steptime.kernels import dropout; assert dropout.available() is None;"
        "dropout.dropout(torch.ones(100000), 0.1);"
        "print({l.split()[-1] for l in open('/proc/self/maps') if 'omp' in l.rsplit('/', 1)[-1]})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(eval(done.stdout)) <= 1
