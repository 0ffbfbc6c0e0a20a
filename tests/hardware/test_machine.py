import os

import pytest

from steptime.hardware import look_at_machine
from steptime.hardware.machine import cpu_quota

CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 207
model name\t: INTEL(R) XEON(R) PLATINUM 8592+
cpu MHz\t\t: 1900.000
flags\t\t: fpu avx2 fma amx_bf16

processor\t: 1
vendor_id\t: SomethingElse
model\t\t: 1
"""


def plant(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def a_server(root):
    """Four logical CPUs on two cores: 0 and 2 share one, 1 and 3 the other."""
    cpu = "sys/devices/system/cpu"
    files = {"proc/cpuinfo": CPUINFO, "proc/meminfo": "MemTotal:       16384 kB\nMemFree: 1 kB"}
    for at in range(4):
        files[f"{cpu}/cpu{at}/topology/thread_siblings_list"] = "0,2" if at % 2 == 0 else "1,3"
        files[f"{cpu}/cpu{at}/cpufreq/cpuinfo_max_freq"] = "3900000"
    for index, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"), ("3", "Unified", "327680K")]
    ):
        for name, value in (("level", level), ("type", kind), ("size", size)):
            files[f"{cpu}/cpu0/cache/index{index}/{name}"] = value
    return plant(root, files)


def test_a_whole_server(tmp_path):
    machine = look_at_machine(a_server(tmp_path), affinity={0, 1, 2, 3})
    assert (machine.cpu_vendor, machine.cpu_family, machine.cpu_model) == ("GenuineIntel", 6, 207)
    assert machine.flags == {"fpu", "avx2", "fma", "amx_bf16"}
    assert (machine.threads, machine.cores, machine.cores_at_hand) == (4, 2, 2.0)
    assert machine.clock_hz == 3.9e9  # cpufreq's, not the nominal 1.9 GHz
    assert machine.cache_bytes == {"l1d": 48 * 1024, "l2": 2 * 2**20, "l3": 320 * 2**20}
    assert (machine.memory_bytes, machine.virtual, machine.power_cap_w) == (16 * 2**20, False, None)


@pytest.mark.parametrize(("affinity", "cores"), [({0, 2}, 1), ({0, 1}, 2), ({0}, 1)])
def test_hyperthreads_of_one_core_are_one_core(tmp_path, affinity, cores):
    machine = look_at_machine(a_server(tmp_path), affinity=affinity)
    assert (machine.threads, machine.cores) == (len(affinity), cores)


def test_a_quota_leaves_fewer_cores_at_hand(tmp_path):
    plant(a_server(tmp_path), {"proc/self/cgroup": "0::/job", "sys/fs/cgroup/job/cpu.max": "150000 100000"})
    assert look_at_machine(tmp_path, affinity={0, 1, 2, 3}).cores_at_hand == 1.5


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
        # the tightest of the group and its parents holds
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
          "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5),
        # a container sees its own group as the root of the mount
        ({"proc/self/cgroup": "0::/docker/abc", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0),
        ({"proc/self/cgroup": "3:cpu,cpuacct:/j\n1:name=systemd:/j",
          "sys/fs/cgroup/cpu,cpuacct/j/cpu.cfs_quota_us": "300000",
          "sys/fs/cgroup/cpu,cpuacct/j/cpu.cfs_period_us": "100000"}, 3.0),
        ({"proc/self/cgroup": "1:cpu:/", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({"proc/self/cgroup": "rubbish\n0:"}, None),
    ],
)  # fmt: skip
def test_the_quota_of_cgroups(tmp_path, files, quota):
    assert cpu_quota(plant(tmp_path, files)) == quota


def test_the_power_cap_is_that_of_all_packages(tmp_path):
    zone = "sys/class/powercap"
    for name, watts in (("intel-rapl:0", 350), ("intel-rapl:1", 300), ("intel-rapl:0:0", 40)):
        plant(a_server(tmp_path), {f"{zone}/{name}/constraint_0_power_limit_uw": str(watts * 10**6)})
    assert look_at_machine(tmp_path, affinity={0}).power_cap_w == 650.0


def test_gpus_are_those_that_the_driver_lists(tmp_path):
    for bus in ("0000:17:00.0", "0000:ca:00.0"):
        text = "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 77\nGPU UUID: \t GPU-1"
        plant(a_server(tmp_path), {f"proc/driver/nvidia/gpus/{bus}/information": text})
    assert look_at_machine(tmp_path, affinity={0}).gpus == ("NVIDIA A100-SXM4-80GB",) * 2


def test_a_machine_that_tells_nothing(tmp_path):
    machine = look_at_machine(tmp_path, affinity={0, 1})
    assert (machine.cpu_vendor, machine.clock_hz, machine.memory_bytes, dict(machine.cache_bytes)) == (
        None,
        None,
        None,
        {},
    )
    assert (machine.threads, machine.cores) == (2, 2)


def test_this_machine_agrees_with_the_operating_system():
    machine = look_at_machine()
    assert machine.threads == len(os.sched_getaffinity(0))
    assert 0 < machine.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
