import pytest

from steptime.agent.process import helper_kind, rank_of_this_process
from steptime.attach.watch import why_unattached


@pytest.mark.parametrize(
    ("arguments", "helper"),
    [
        ("python train.py --epochs 3", False),
        ("python -u -m my.train", False),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", True),
        ("python /env/bin/torchrun train.py", True),
        ("python /env/bin/accelerate launch train.py", True),
        ("python -W ignore /env/bin/torchrun train.py", True),
        ("python -W ignore train.py torchrun", False),
        ("python -m pip install torch", True),
        ("python /x/torch/_inductor/compile_worker/__main__.py --pickler", True),
    ],
)
def test_who_cannot_train(arguments, helper):
    assert bool(helper_kind(arguments.split())) is helper


def test_multiprocessing_helpers_cannot_train_but_its_children_can():
    tracker = ["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"]
    child = ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()", "--multiprocessing-fork"]
    assert helper_kind(tracker)
    assert helper_kind(child) is None


def test_rank_comes_from_whole_sets_of_variables(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    alone = {"rank": 0, "local_rank": 0, "world_size": 1, "local_world_size": 1}
    monkeypatch.setenv("SLURM_PROCID", "3")  # an interactive shell in an allocation
    assert rank_of_this_process() == alone
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    assert rank_of_this_process()["rank"] == 3
    assert rank_of_this_process()["local_rank"] == 1
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert (rank_of_this_process()["rank"], rank_of_this_process()["world_size"]) == (5, 16)


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (["python", "train.py"], {"STEPTIME_SESSION": "s", "PYTHONPATH": "/x/inject"}, None),
        (["python", "-u", "train.py", "-E"], {"STEPTIME_SESSION": "s", "PYTHONPATH": "/x/inject"}, None),
        (["python", "-uI", "train.py"], {"STEPTIME_SESSION": "s", "PYTHONPATH": "/x/inject"}, "isolated"),
        (["python", "-S", "train.py"], {"STEPTIME_SESSION": "s", "PYTHONPATH": "/x/inject"}, "sitecustomize"),
        (["python", "train.py"], {"PATH": "/bin"}, "environment"),
        (["python", "train.py"], {"STEPTIME_SESSION": "s", "PYTHONPATH": "/mine"}, "PYTHONPATH"),
    ],
)
def test_why_a_process_is_not_attached(arguments, environment, told):
    why = why_unattached(arguments, environment)
    assert (why is None) if told is None else (why is not None and told in why)
