"""steptime: where a training step's time goes, what would make it faster, and the proof that it does.

Importing this package imports nothing else: the agent that steptime puts into a training process lives below it
and may cost that process no more than the standard library does.
"""

__version__ = "0.1.0"
