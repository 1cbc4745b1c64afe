"""Every error that phoenix_core raises on purpose.

Two families: failures that recovery heals (`PeerLost`, `GenerationSuperseded`), and ends of the job
that say what was lost. A user's own exception is never wrapped in either.
"""

from __future__ import annotations


class PhoenixError(Exception):
    """Base of all errors of the runtime; the message says what was wrong, where, and what to do."""


class PeerLost(PhoenixError):
    """A collective broke because another rank is gone or does not answer. Recovery heals it."""


class GenerationSuperseded(PhoenixError):
    """An operation was asked of a communicator of an old generation. Recovery heals it."""


class SnapshotUnavailable(PhoenixError):
    """No live twin and no holder can give a rank its state: the job must stop."""


class CheckpointDamaged(PhoenixError):
    """A checkpoint on disk is not as it was written, or a part of it is missing."""


class JobStopped(PhoenixError):
    """The coordinator ended the job; the message is its reason."""


class UsageError(PhoenixError):
    """The training script or the command line asks for something that cannot be done."""
