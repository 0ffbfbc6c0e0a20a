"""The closed loop: predict, try, verify, keep; and the statistics of both verdicts."""

from steptime.tune.books import Books, LedgerBooks, NoBooks
from steptime.tune.command import tune_script
from steptime.tune.duel import Duel, duel
from steptime.tune.loop import tune
from steptime.tune.quality import Quality
from steptime.tune.result import RemedyResult, TuneResult
from steptime.tune.scripts import ScriptTrials, usable_cores
from steptime.tune.settings import TuneSettings, seconds_of
from steptime.tune.trials import Setup

__all__ = [
    "Books",
    "Duel",
    "LedgerBooks",
    "NoBooks",
    "Quality",
    "RemedyResult",
    "ScriptTrials",
    "Setup",
    "TuneResult",
    "TuneSettings",
    "duel",
    "seconds_of",
    "tune",
    "tune_script",
    "usable_cores",
]
