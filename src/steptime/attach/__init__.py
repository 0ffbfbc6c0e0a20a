"""The host side: launch a script with the agent in it, read what it left, look at a running job."""

from steptime.attach.demand import trace_on_demand
from steptime.attach.gate import GateServer
from steptime.attach.launch import Launch, agent_environment, launch
from steptime.attach.record import RankRecord, SessionRecord, StepTable, read_session
from steptime.attach.running import Frame, RunningJob, RunningProcess, look_at
from steptime.attach.spec import SessionSpec, WindowSpec, write_session
from steptime.attach.watch import Unattached

__all__ = [
    "Frame",
    "GateServer",
    "Launch",
    "RankRecord",
    "RunningJob",
    "RunningProcess",
    "SessionRecord",
    "SessionSpec",
    "StepTable",
    "Unattached",
    "WindowSpec",
    "agent_environment",
    "launch",
    "look_at",
    "read_session",
    "trace_on_demand",
    "write_session",
]
