"""What runs inside the user's process: it arms, finds the steps, measures, traces, and applies a Plan.

Reader's path: `inject/boot.py` (how we get in), `arm.py` (whether and when), `recorder.py` (one training step's path
through us), `schedule.py` (which window a step belongs to). Standard library only until the script has imported torch.
"""
