"""The machine: what its maker says (Device), what this process may use of it (Machine), what it was measured to do.

calibration = load_calibration() or probe(quick=True)
peak = calibration.ceiling("matmul.fp32.flops_per_s")
"""

from steptime.hardware.calibration import (
    Calibration,
    Measured,
    Refused,
    fingerprint,
    load_calibration,
    read_calibration,
    save_calibration,
)
from steptime.hardware.catalog import cpu_device, find_device, load_catalog
from steptime.hardware.device import Device, peak_flops_per_s
from steptime.hardware.machine import Machine, look_at_machine
from steptime.hardware.measure import probe
from steptime.hardware.timing import others_busy

__all__ = [
    "Calibration",
    "Device",
    "Machine",
    "Measured",
    "Refused",
    "cpu_device",
    "find_device",
    "fingerprint",
    "load_calibration",
    "load_catalog",
    "look_at_machine",
    "others_busy",
    "peak_flops_per_s",
    "probe",
    "read_calibration",
    "save_calibration",
]
