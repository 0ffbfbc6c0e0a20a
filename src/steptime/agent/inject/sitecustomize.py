"""Found by the interpreter because this folder stands first on PYTHONPATH: arms the agent, then the user's own one.

The user's `sitecustomize`, if there is one further down `sys.path`, is run exactly as it would have been; an error
in it propagates as it would have.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_BOOT = os.path.join(_FOLDER, "boot.py")

with open(_BOOT, encoding="utf-8") as _file:
    exec(compile(_file.read(), _BOOT, "exec"), {"__name__": "steptime_boot", "__file__": _BOOT})

# PYTHONPATH keeps the folder, for the children; this process's own search path is the user's again
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _FOLDER]


def _run_the_users_own() -> None:
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_run_the_users_own()
