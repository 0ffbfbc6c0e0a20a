from __future__ import annotations

import random
import threading
import time

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from steptime.agent.apply import data as section


class Numbers(Dataset):
    def __init__(self, count=23):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return torch.tensor(float(i))


class Noisy(Numbers):
    def __getitem__(self, i):
        return torch.tensor(float(i)) + torch.rand(())


class PythonNoisy(Numbers):
    def __getitem__(self, i):
        return random.random()


class Broken(Numbers):
    def __getitem__(self, i):
        if i == 17:
            raise KeyError("sample 17 is missing")
        return torch.tensor(float(i))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(9.0))


def run(loader, epochs=3, draws=True, stop_after=None):
    """Two epochs of batches, with the model's random numbers drawn between them, as dropout would."""
    seen, stream = [], []
    for _ in range(epochs):
        for count, batch in enumerate(loader, 1):
            seen.append(batch.tolist())
            if draws:
                stream.append(torch.rand(()).item())
            if count == stop_after:
                break
    return seen, stream, torch.rand(2).tolist()


def threads():
    return [one for one in threading.enumerate() if one.name == "steptime-prefetch"]


LOADERS = {
    "shuffled": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True),
    "drop_last": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True, drop_last=True),
    "own generator": lambda: DataLoader(
        Numbers(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "replacing, own generator": lambda: DataLoader(
        Numbers(), 4, sampler=RandomSampler(Numbers(), True, 90, torch.Generator().manual_seed(5))
    ),
    "weighted": lambda: DataLoader(Numbers(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 23, 17)),
    "distributed": lambda: DataLoader(Numbers(), batch_size=4, sampler=DistributedSampler(Numbers(), 2, 0)),
    "in order": lambda: DataLoader(Numbers(), batch_size=4),
    "one batch": lambda: DataLoader(Numbers(3), batch_size=4, shuffle=True),
    "two batches": lambda: DataLoader(Numbers(8), batch_size=4, shuffle=True),
    "no batching": lambda: DataLoader(Numbers(5), batch_size=None, shuffle=True),
    "stream": lambda: DataLoader(Stream(), batch_size=2),
}


@pytest.mark.parametrize("kind", list(LOADERS))
@pytest.mark.parametrize("stop_after", [None, 3])
def test_the_thread_gives_the_same_batches_and_leaves_the_random_stream_alone(applied, kind, stop_after):
    torch.manual_seed(7)
    truth = run(LOADERS[kind](), stop_after=stop_after)
    applied(data={"prefetch_thread": 3})
    torch.manual_seed(7)
    assert run(LOADERS[kind](), stop_after=stop_after) == truth
    assert threads() == []  # none survives its epoch, whole or broken off
    if kind not in ("one batch", "two batches"):
        assert applied.ok("data.prefetch_thread")


@pytest.mark.parametrize("dataset", [Noisy, PythonNoisy])
def test_a_data_set_that_draws_random_numbers_keeps_the_main_thread(applied, dataset):
    torch.manual_seed(7), random.seed(7)
    truth = run(DataLoader(dataset(), batch_size=4, shuffle=True))
    applied(data={"prefetch_thread": 3, "workers": 2})
    torch.manual_seed(7), random.seed(7)
    found = run(DataLoader(dataset(), batch_size=4, shuffle=True))
    assert [[float(x) for x in batch] for batch in found[0]] == [[float(x) for x in batch] for batch in truth[0]]
    assert found[1:] == truth[1:]
    assert not applied.ok("data.prefetch_thread")
    assert not applied.ok("data.workers")
    assert "random" in applied.why("data.prefetch_thread")


def test_an_error_of_the_data_set_comes_at_its_place_with_its_traceback(applied):
    applied(data={"prefetch_thread": 4})
    iterator = iter(DataLoader(Broken(), batch_size=4))
    for _ in range(4):
        next(iterator)
    with pytest.raises(KeyError, match="sample 17 is missing") as raised:
        next(iterator)
    assert any(entry.name == "__getitem__" for entry in raised.traceback)
    assert threads() == []


def test_batches_are_read_ahead_up_to_the_depth_and_not_while_held(applied):
    applied(data={"prefetch_thread": 2})
    read = []

    class Watched(Numbers):
        def __getitem__(self, i):
            read.append(i)
            return torch.tensor(float(i))

    iterator = iter(DataLoader(Watched(), batch_size=1))
    for _ in range(3):
        next(iterator)
    deadline = time.monotonic() + 20
    while len(read) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    # three given, two queued, one in the thread's hand
    assert len(read) == 6
    section.hold()
    time.sleep(0.3)
    next(iterator), next(iterator), next(iterator)
    time.sleep(0.3)
    assert len(read) == 6
    section.release()
    assert [next(iterator).item() for _ in range(3)] == [6.0, 7.0, 8.0]
    del iterator
    assert threads() == []


def test_loaders_that_evaluate_are_left_alone(applied):
    applied(data={"prefetch_thread": 2, "pin_memory": False})
    train, test = DataLoader(Numbers(), batch_size=4, shuffle=True), DataLoader(Numbers(), batch_size=4)
    plain = type(iter(DataLoader(Numbers())))
    assert isinstance(iter(test), torch.utils.data.dataloader._BaseDataLoaderIter)
    with torch.no_grad():
        assert isinstance(iter(train), torch.utils.data.dataloader._BaseDataLoaderIter)
    assert not issubclass(type(iter(train)), plain)


@pytest.mark.spawned
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_give_the_same_batches_and_leave_the_random_stream_alone(applied, persistent):
    torch.manual_seed(7)
    truth = run(DataLoader(Numbers(), batch_size=4, shuffle=True))
    applied(data={"workers": 1, "persistent_workers": persistent, "prefetch_factor": 3, "prefetch_thread": 2})
    torch.manual_seed(7)
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
    assert run(loader) == truth
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 3, persistent)
    assert {name for name, ok, _ in applied.told if ok} >= {"data.workers", "data.prefetch_factor"}


def test_what_this_machine_or_loader_cannot_do_is_reported(applied):
    applied(data={"workers": 2, "pin_memory": True, "prefetch_factor": 4})
    assert len(list(DataLoader(Stream(), batch_size=3))) == 3
    assert "IterableDataset" in applied.why("data.workers")
    assert "no workers" in applied.why("data.prefetch_factor")
    if not torch.accelerator.is_available():
        assert "no accelerator" in applied.why("data.pin_memory")
