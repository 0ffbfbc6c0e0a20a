"""A machine to hold numbers against."""

import pytest

from steptime.hardware import Machine

FACTS = {
    "architecture": "x86_64",
    "cpu_vendor": "AuthenticAMD",
    "cpu_family": 25,
    "cpu_model": 1,
    "cpu_name": "AMD EPYC",
    "flags": frozenset({"avx", "avx2", "fma"}),
    "threads": 2,
    "cores": 2,
    "cpu_quota": None,
    "clock_hz": 2.445e9,
    "cache_bytes": {},
    "memory_bytes": 2**34,
    "virtual": True,
    "power_cap_w": None,
}


@pytest.fixture
def a_machine():
    """A function that makes a two-core EPYC Milan virtual machine, with the facts that it is given changed."""
    return lambda **known: Machine(**{**FACTS, **known})
