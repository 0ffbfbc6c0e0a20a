import pytest

from steptime.errors import SteptimeError
from steptime.hardware import cpu_device, find_device, load_catalog, peak_flops_per_s

MILAN = frozenset({"avx", "avx2", "fma"})
EMERALD = MILAN | {"avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"}


# Dense datasheet figures, in Tflop/s, as NVIDIA and AMD print them.
@pytest.mark.parametrize(
    ("name", "dtype", "teraflops"),
    [
        ("A100-SXM-80", "bf16", 312), ("A100-SXM-80", "fp32", 19.5), ("A100-SXM-80", "tf32", 156),
        ("H100-SXM", "bf16", 989), ("H100-SXM", "fp8", 1979), ("H100-SXM", "fp32", 67), ("H200-SXM", "bf16", 989),
        ("B200-SXM", "bf16", 2250), ("B200-SXM", "fp4", 9000), ("B200-SXM", "tf32", 1125), ("B200-SXM", "fp64", 37),
        ("B300-SXM", "int8", 125), ("MI300X", "bf16", 1307), ("MI300X", "fp8", 2615),
    ],
)  # fmt: skip
def test_gpu_peaks_are_the_datasheets(name, dtype, teraflops):
    assert peak_flops_per_s(find_device(name), dtype) == pytest.approx(teraflops * 1e12, rel=0.005)


@pytest.mark.parametrize(
    ("name", "units", "fma_per_cycle", "clock_hz"),
    # multiprocessors x multiply-adds a cycle x 2 x boost clock (whitepapers): fp32 units, then bf16 tensor cores
    [
        ("A100-SXM-80", 108, {"fp32": 64, "bf16": 1024, "tf32": 512, "int8": 2048}, 1.410e9),
        ("H100-SXM", 132, {"bf16": 2048, "tf32": 1024, "fp8": 4096, "int8": 4096}, 1.830e9),
        ("H100-SXM", 132, {"fp32": 128}, 1.980e9),
        ("MI300X", 304, {"fp32": 128, "bf16": 1024, "fp8": 2048}, 2.100e9),
    ],
)
def test_gpu_peaks_follow_from_units_and_clock(name, units, fma_per_cycle, clock_hz):
    device = find_device(name)
    assert device.units.value == units
    for dtype, rate in fma_per_cycle.items():
        assert peak_flops_per_s(device, dtype) == pytest.approx(units * rate * 2 * clock_hz, rel=0.01)


# What CUDA reports of the devices, in MiB; each of AMD's eight dies has 4.
@pytest.mark.parametrize(
    ("name", "mib"),
    [("A100-SXM-80", 40), ("H100-SXM", 50), ("H200-SXM", 60), ("B200-SXM", 126.5), ("MI300X", 8 * 4)],
)
def test_the_l2_is_the_whole_devices(name, mib):
    assert find_device(name).cache_bytes["l2"].value == mib * 2**20


@pytest.mark.parametrize(
    ("name", "bus_bits", "bits_per_s_and_pin"),
    # width of the bus and data rate of a pin: NVIDIA's whitepapers and driver, AMD's endnote MI300-13
    [
        ("A100-SXM-80", 5120, 3.186e9), ("H100-SXM", 5120, 5.234e9), ("B200-SXM", 7680, 2 * 3.996e9),
        ("MI300X", 8192, 5.2e9),
    ],
)  # fmt: skip
def test_gpu_bandwidths_follow_from_the_bus(name, bus_bits, bits_per_s_and_pin):
    bandwidth = find_device(name).memory_bandwidth_bytes_per_s.value
    assert bandwidth == pytest.approx(bus_bits / 8 * bits_per_s_and_pin, rel=0.01)


def test_halving_the_operand_doubles_the_peak():
    checked = 0
    for device in load_catalog().values():
        peaks = {dtype: figure.value for dtype, figure in device.peak_flops_per_s.items()}
        for wide, narrow in (("bf16", "fp8"), ("tf32", "bf16"), ("bf16", "int8")):
            if device.name == "B300-SXM" and narrow == "int8":
                continue  # gave int8 up: HGX B300 has 2 POPS where HGX B200 has 72
            if wide in peaks and narrow in peaks:
                assert peaks[narrow] == pytest.approx(2 * peaks[wide], rel=0.02), (device.name, wide, narrow)
                checked += 1
        if "bf16" in peaks:
            assert peaks["fp16"] == peaks["bf16"], device.name
    assert checked >= 10


def test_every_number_has_a_source_and_plausible_size():
    for device in load_catalog().values():
        figures = [
            *device.peak_flops_per_s.values(), *device.cache_bytes.values(),
            *(figure for path in device.paths for figure in path.flops_per_cycle.values()),
            *(value for _, value in device if hasattr(value, "source")),
        ]  # fmt: skip
        assert all(len(figure.source) > 5 and figure.date[:2] == "20" for figure in figures), device.name
        if device.kind == "gpu":
            assert 1e12 < device.memory_bandwidth_bytes_per_s.value < 2e13
            # machine balance of the matrix units of all of these lies between 100 and 400 flops a byte
            assert 100 < device.peak_flops_per_s["bf16"].value / device.memory_bandwidth_bytes_per_s.value < 400


def test_zen_3_does_32_flops_a_cycle_and_core(a_machine):
    # two FMA pipes x 8 float32 lanes x 2 flops; four cores at 3.5 GHz: 448 Gflop/s
    device = cpu_device(a_machine())
    assert device.name == "AMD EPYC Milan"
    assert peak_flops_per_s(device, "fp32", cores=4, flags=MILAN, clock_hz=3.5e9) == 2 * 8 * 2 * 4 * 3.5e9
    assert peak_flops_per_s(device, "bf16", cores=4, flags=MILAN, clock_hz=3.5e9) is None


def test_amx_is_counted_only_where_the_flags_say_so(a_machine):
    # TDPBF16PS: 16 x 16 x 32 multiply-adds in 16 cycles; AVX-512: two FMA pipes x 16 lanes x 2
    device = cpu_device(a_machine(cpu_vendor="GenuineIntel", cpu_family=6, cpu_model=207, flags=EMERALD))
    assert device.name == "Intel Xeon Emerald Rapids"
    assert peak_flops_per_s(device, "bf16", cores=1, flags=EMERALD, clock_hz=1e9) == 16 * 16 * 32 / 16 * 2 * 1e9
    assert peak_flops_per_s(device, "fp32", cores=1, flags=EMERALD, clock_hz=1e9) == 64e9
    assert peak_flops_per_s(device, "bf16", cores=1, flags=EMERALD - {"amx_bf16"}, clock_hz=1e9) is None
    assert peak_flops_per_s(device, "fp32", cores=1, flags=MILAN, clock_hz=1e9) == 32e9


def test_without_a_clock_anywhere_there_is_no_peak():
    device = find_device("Intel Xeon Emerald Rapids")
    assert device.max_clock_hz is None
    assert peak_flops_per_s(device, "fp32", cores=1, flags=EMERALD) is None


def test_an_unknown_cpu_is_generic_and_has_no_numbers(a_machine):
    for architecture, name in (("x86_64", "generic x86-64"), ("aarch64", "generic arm64")):
        device = cpu_device(a_machine(architecture=architecture, cpu_vendor="Nobody", cpu_family=1, cpu_model=1))
        assert device.name == name
        assert peak_flops_per_s(device, "fp32", cores=2, flags=EMERALD, clock_hz=1e9) is None
        assert (device.memory_bandwidth_bytes_per_s, device.power_w, dict(device.cache_bytes)) == (None, None, {})
    with pytest.raises(SteptimeError, match="riscv64"):
        cpu_device(a_machine(architecture="riscv64", cpu_vendor=None, cpu_family=None, cpu_model=None))


def test_a_gpu_is_found_by_the_name_it_gives_itself_and_never_by_a_similar_one():
    assert find_device("nvidia h100 80gb hbm3").name == "H100-SXM"
    for unknown in ("NVIDIA H100 PCIe", "H100", "NVIDIA A100-SXM4-40GB", ""):
        with pytest.raises(SteptimeError, match="no device"):
            find_device(unknown)


def test_the_public_names():
    import steptime.hardware

    assert set(steptime.hardware.__all__) == {
        "Calibration", "Device", "Machine", "Measured", "Refused", "cpu_device", "find_device", "fingerprint",
        "load_calibration", "load_catalog", "look_at_machine", "others_busy", "peak_flops_per_s", "probe",
        "read_calibration", "save_calibration",
    }  # fmt: skip
