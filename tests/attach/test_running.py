"""A look at running processes: the line in which a stuck script hangs, and the late rank of two."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from steptime.attach import look_at
from steptime.attach.telling import tell
from steptime.errors import SteptimeError

pytestmark = pytest.mark.spawned

STUCK = """
import threading, time, sys
def wait_for_lock():
    lock = threading.Lock()
    with lock:
        lock.acquire()
def nap():
    time.sleep(100)
def spin():
    while True:
        pass
print("up", flush=True)
{"lock": wait_for_lock, "sleep": nap, "spin": spin}[sys.argv[1]]()
"""

LATE = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
def load_data():
    time.sleep(120)
if dist.get_rank() == 1:
    print("up", flush=True)
    load_data()
x = torch.ones(1)
dist.all_reduce(x)
"""


@pytest.mark.parametrize(("how", "line"), [("lock", "wait_for_lock"), ("sleep", "nap"), ("spin", "spin")])
def test_the_line_in_which_a_script_hangs(tmp_path, how, line):
    pytest.importorskip("psutil")
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    number = next(i for i, text in enumerate(STUCK.splitlines(), 1) if f"def {line}" in text)
    with subprocess.Popen([sys.executable, str(script), how], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.1)
            job = look_at(process.pid, looks=3, over_s=0.4)
        finally:
            process.kill()
    (one,) = job.processes
    assert one.line is not None
    assert (one.line.function, one.line.file) == (line, str(script))
    assert number < one.line.line <= number + 3
    assert one.still or how == "spin"
    assert f"{line} ({script}:{one.line.line})" in tell(job)


def test_no_such_process():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(SteptimeError, match="no such process"):
        look_at(gone.pid)


@pytest.mark.slow
def test_the_late_rank(tmp_path):
    script = tmp_path / "late.py"
    script.write_text(LATE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            ranks = [p for p in psutil.Process(process.pid).children() if "late.py" in " ".join(p.cmdline())]
            until = time.monotonic() + 30
            job = look_at(process.pid, looks=3, over_s=1.0)
            while job.late is None and time.monotonic() < until:  # rank 0 may still be on its way to the collective
                job = look_at(ranks[0].pid, looks=3, over_s=1.0)
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.send_signal(signal.SIGKILL)
            process.kill()
    assert job.late == 1
    assert "rank 1 is late" in tell(job)
    assert "load_data" in tell(job).splitlines()[0]
    assert sorted(p.role for p in job.processes) == ["launcher", "trains", "trains"]
