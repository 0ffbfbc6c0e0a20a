"""A thread that prepares the next batches of a DataLoader while the step computes.

The batches and their order are those of the plain iterator, and the main thread's random stream is the same: the
iterator is made, and its first two batches are read, on the main thread. That is where torch's samplers draw their
seed, and it shows whether the data set or sampler uses the global generators; if so the thread is not started, since
it would draw in a race with the model's dropout.
"""

from __future__ import annotations

import atexit
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Self, final

import torch
from torch.utils.data import DataLoader, IterDataPipe

from steptime.agent.apply.randomness import random_states, same_states

PROBED_BATCHES = 2
_BATCH, _END, _ERROR = range(3)
Item = tuple[int, Any, torch.Tensor | None]
"""What it is, the batch or error, and the state of the script's generator after it."""
_POLL_S = 0.2  # how long a stopped thread may go unnoticed

_released = threading.Event()
_released.set()
_running: weakref.WeakSet[PrefetchIterator] = weakref.WeakSet()


def hold() -> None:
    """Keeps prefetch threads from beginning another batch: another process is being timed."""
    _released.clear()


def release() -> None:
    """Lets them go on."""
    _released.set()


def refusal(loader: DataLoader[Any]) -> str | None:
    """Why a thread cannot read from this loader without changing what the script sees, None when it can."""
    if isinstance(loader.dataset, IterDataPipe):
        return "the data set is a DataPipe"
    if torch.get_default_device().type != "cpu":
        return "the script sets a default device, which threads do not inherit"
    return None


def visible_generator(loader: DataLoader[Any]) -> torch.Generator | None:
    """The generator that the script gave the sampler, and that it finds advanced after each epoch."""
    return getattr(getattr(loader.batch_sampler, "sampler", loader.sampler), "generator", None)


@final
class PrefetchIterator:
    """Iterates `inner` through a bounded queue that a thread fills.

    Ends exactly where `inner` ends and raises what it raises, at the same place. A loop that is left early stops the
    thread when the iterator is dropped; a generator that the script can see is then put back to where the last batch
    that was given left it, since the thread drew for batches that nobody will see.
    """

    def __init__(
        self,
        inner: Iterator[Any],
        depth: int,
        report: Callable[[bool, str], None],
        generator: torch.Generator | None = None,
    ) -> None:
        self._inner = inner
        self._generator = generator
        self._state: torch.Tensor | None = None
        self._depth = depth
        self._report = report
        self._probed = 0
        self._refused = False
        self._queue: queue.Queue[Item] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._over = False

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # frameworks look at private fields of torch's iterator
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        if self._refused:
            return next(self._inner)
        if self._over:
            raise StopIteration
        if self._probed < PROBED_BATCHES:
            return self._probe()
        if self._thread is None:
            self._start()
        kind, value, state = self._queue.get()
        if kind == _BATCH:
            self._state = state
            return value
        self._over = True
        self.close()
        if kind == _ERROR:
            raise value
        raise StopIteration

    def close(self) -> None:
        """Stops the thread and waits for the batch that it is reading."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            while thread.is_alive():
                _drain(self._queue)
                thread.join(_POLL_S / 10)
            if self._generator is not None and self._state is not None and not self._over:
                self._generator.set_state(self._state)

    def __del__(self) -> None:
        # set by __init__ only when it got so far
        if "_stop" in self.__dict__:
            self.close()

    def _probe(self) -> Any:
        """Reads a batch here. The first one draws the sampler's seed, so only what the second draws counts for it."""
        self._probed += 1
        states = random_states()
        sampled = self._states_after_sampling() if self._probed == 1 else states
        batch = next(self._inner)
        if not same_states(sampled, random_states()):
            self._refused = True
            self._report(False, "the data set or sampler draws from the global random generators")
        return batch

    def _states_after_sampling(self) -> Any:
        """States once the sampler has given its first indices; worker iterators drew them when they were made."""
        iterator = self._inner
        if getattr(iterator, "_num_workers", 0) or not hasattr(iterator, "_sampler_iter"):
            return random_states()
        sampler = iterator._sampler_iter  # type: ignore[attr-defined]
        try:
            first = next(sampler)
        except StopIteration:
            return random_states()
        iterator._sampler_iter = _Resumed(first, sampler)  # type: ignore[attr-defined]
        return random_states()

    def _start(self) -> None:
        context = contextvars.copy_context()
        arguments = (_fill, self._inner, self._queue, self._stop, self._generator)
        self._state = None if self._generator is None else self._generator.get_state()
        self._thread = threading.Thread(target=context.run, args=arguments, name="steptime-prefetch", daemon=True)
        _running.add(self)
        self._thread.start()
        self._report(True, f"a thread prepares up to {self._depth} batches ahead")


@final
class _Resumed:
    """An iterator whose first element was already taken."""

    def __init__(self, first: Any, rest: Iterator[Any]) -> None:
        self._first: list[Any] = [first]
        self._rest = rest

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._first.pop() if self._first else next(self._rest)


def _fill(
    inner: Iterator[Any], batches: queue.Queue[Item], stop: threading.Event, generator: torch.Generator | None
) -> None:
    """The thread. It knows neither the iterator that owns it nor the script, so that both can be dropped."""
    # one thread an operation, as torch's own pinning thread has it: the step needs the others
    torch.set_num_threads(1)
    while not stop.is_set():
        if not _released.wait(_POLL_S):
            continue
        try:
            batch = next(inner)
            item = (_BATCH, batch, None if generator is None else generator.get_state())
        except StopIteration:
            item = (_END, None, None)
        except BaseException as error:
            item = (_ERROR, error, None)
        _put(batches, item, stop)
        if item[0] != _BATCH:
            return


def _put(batches: queue.Queue[Item], item: Item, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            batches.put(item, timeout=_POLL_S)
        except queue.Full:
            continue
        return


def _drain(batches: queue.Queue[Item]) -> None:
    try:
        while True:
            batches.get_nowait()
    except queue.Empty:
        return


@atexit.register
def _stop_all() -> None:
    """A thread inside torch while the interpreter goes down would abort the process."""
    release()
    for one in list(_running):
        one.close()
