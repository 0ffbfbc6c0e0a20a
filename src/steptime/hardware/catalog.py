"""The devices that steptime knows. An unknown one is an error or a generic entry without numbers, never another's."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

from pydantic import ValidationError

from steptime.errors import SteptimeError
from steptime.hardware.device import Device
from steptime.hardware.machine import Machine


@functools.cache
def load_catalog() -> Mapping[str, Device]:
    """All devices by name.

    Raises:
        SteptimeError: a file of the catalogue is malformed.
    """
    devices: dict[str, Device] = {}
    for file in sorted(
        resources.files("steptime.hardware").joinpath("catalog").iterdir(), key=lambda entry: entry.name
    ):
        if not file.name.endswith(".toml"):
            continue
        try:
            device = Device.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        except (tomllib.TOMLDecodeError, ValidationError) as error:
            raise SteptimeError(str(error).replace("\n", " "), where=f"catalogue file {file.name}") from error
        devices[device.name] = device
    return MappingProxyType(devices)


def find_device(name: str) -> Device:
    """The device of this catalogue name, or that CUDA or HIP call so; case does not matter.

    Raises:
        SteptimeError: the catalogue has none.
    """
    wanted = name.casefold()
    for device in load_catalog().values():
        if wanted == device.name.casefold() or wanted in (known.casefold() for known in device.identity.names):
            return device
    raise SteptimeError(
        f"no device {name!r} in the catalogue",
        mend=f"known are {', '.join(load_catalog())}; or measure it with `probe`",
    )


def cpu_device(machine: Machine) -> Device:
    """The CPU of `machine`: by vendor, family and model, else the generic entry of its architecture.

    Raises:
        SteptimeError: not even a generic entry fits.
    """
    catalog = load_catalog().values()
    for device in catalog:
        known = device.identity
        same_family = (known.cpu_vendor, known.cpu_family) == (machine.cpu_vendor, machine.cpu_family)
        if known.cpu_vendor and same_family and machine.cpu_model in known.cpu_models:
            return device
    for device in catalog:
        if device.identity.architecture == machine.architecture:
            return device
    raise SteptimeError(f"no device for the CPU architecture {machine.architecture!r} in the catalogue")
