"""Loads `steptime.agent` into this interpreter without touching `sys.path`, and arms it.

Executed as text by `sitecustomize.py` and by the installed `.pth`: the interpreter may belong to an environment in
which steptime is not installed, so the package is built from its own location, and whatever goes wrong stays here.
"""

import os
import sys


def load_and_arm(package_folder: str) -> None:
    """Makes `steptime` importable from `package_folder` (its `__init__.py` imports nothing) and arms the agent."""
    import importlib.util

    if "steptime" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "steptime", os.path.join(package_folder, "__init__.py"), submodule_search_locations=[package_folder]
        )
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        sys.modules["steptime"] = module
        spec.loader.exec_module(module)
    from steptime.agent.arm import arm

    arm()


if os.environ.get("STEPTIME_SESSION"):
    try:
        load_and_arm(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    except Exception as problem:  # the script comes first: it runs unmeasured, and the host reads why
        try:
            with open(f"{os.environ['STEPTIME_SESSION']}/fault-{os.getpid()}.txt", "w", encoding="utf-8") as _fault:
                _fault.write(f"the agent could not be armed: {problem!r}\n")
        except OSError:
            os.environ.pop("STEPTIME_SESSION", None)  # no session to write into: the children need not try
