"""The closed loop: predict, try, verify, keep; and the statistics of both verdicts."""

from steptime.tune.books import Books, LedgerBooks, NoBooks
from steptime.tune.loop import tune
from steptime.tune.quality import Quality
from steptime.tune.result import RemedyResult, TuneResult
from steptime.tune.scripts import ScriptTrials, usable_cores
from steptime.tune.settings import TuneSettings, seconds_of

__all__ = [
    "Books",
    "LedgerBooks",
    "NoBooks",
    "Quality",
    "RemedyResult",
    "ScriptTrials",
    "TuneResult",
    "TuneSettings",
    "seconds_of",
    "tune",
    "usable_cores",
]
