"""The host side: launch a script with the agent in it, read what it left, look at a running job."""

from steptime.attach.launch import Launch, agent_environment, launch
from steptime.attach.record import RankRecord, SessionRecord, StepTable, read_session
from steptime.attach.spec import SessionSpec, WindowSpec, write_session
from steptime.attach.watch import Unattached

__all__ = [
    "Launch",
    "RankRecord",
    "SessionRecord",
    "SessionSpec",
    "StepTable",
    "Unattached",
    "WindowSpec",
    "agent_environment",
    "launch",
    "read_session",
    "write_session",
]
