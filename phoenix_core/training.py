"""What a training script writes: `with session() as ft`, `ft.protect`, `for step in ft.steps(n)`, `with step`."""

from __future__ import annotations

import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch.distributed as dist

from phoenix_core import device_errors
from phoenix_core.advice import EARLY_BATCH, GROUP_IN_LOOP, say_once, tell
from phoenix_core.backends import is_broken_collective
from phoenix_core.data import Batches
from phoenix_core.errors import GenerationSuperseded, JobStopped, PeerLost, PhoenixError, UsageError
from phoenix_core.hooks import untraced
from phoenix_core.inbox import Inbox
from phoenix_core.modes import Modes, is_switching
from phoenix_core.recovery import Rank
from phoenix_core.settings import WorkerSettings

SIGNAL = signal.SIGRTMIN + 6
"""Interrupts the training thread; chosen away from those that schedulers send to user code."""
ANNOUNCEMENT_LIMIT_S = 60.0
SWITCHING_LIMIT_S = 1.0
"""For how long a step is left alone where each signal finds it in a context manager's own code."""


class StepInterrupted(BaseException):
    """Thrown into a step that a failure elsewhere has made void. Not an Exception: no handler of the
    script's should take it for an error of its own."""


class Step:
    """One pass of the loop. `index` is the optimizer step, from 0 on; a recovery may take it back."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.started_ns = 0
        self.recorded: dict[str, Any] = {}
        self._modes = Modes.now()

    @property
    def index(self) -> int:
        return self._session.rank_state.boundary

    def record(self, **values: float | int | str) -> None:
        """Add values (the loss) to this step's `step_committed` event, exactly as they are."""
        self.recorded.update(values)

    def __enter__(self) -> Step:
        session = self._session
        # A failure announced since the loop came here is met inside: what the script has drawn for this step
        # meanwhile is drawn again only if the loop comes here again.
        self.started_ns, self.recorded = time.monotonic_ns(), {}
        self._modes = Modes.now()
        session.rank_state.begin_step(self.recorded)
        session.let_interrupt(sys._getframe(1).f_code)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        session = self._session
        session.interruptible = False
        if error is None:
            try:
                session.rank_state.commit_step(time.monotonic_ns() - self.started_ns, self.recorded)
                return False
            except Exception as broken:
                if not session.is_healable(broken):
                    session.leave_with_device(broken)
                    raise
                error = broken
        elif not session.is_healable(error):
            session.leave_with_device(error)
            return False
        del tb
        _let_go_of_frames(error)
        self._modes.put_back()
        session.recover(error)
        return True


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error`, and what it came of."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _let_go_of_frames(error: BaseException) -> None:
    """They would keep the broken step's activations alive.

    And its generators, which leave their context managers when they are let go: now, not in the middle of a later step.
    """
    for seen in _chain(error):
        traceback.clear_frames(seen.__traceback__)
        seen.__traceback__ = None


# Inbox.wait looks for itself, and holds a lock that an exception at a bad instant would never give back.
_SHIELDED = frozenset((Step.__enter__.__code__, Step.__exit__.__code__, Inbox.wait.__code__))


def _codes(frame: FrameType | None) -> Iterator[CodeType]:
    """What the frame and its callers execute."""
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


class Session:
    """The runtime of one rank, as the script sees it. Made by `session()`."""

    def __init__(self) -> None:
        self.rank_state = Rank(WorkerSettings.from_environment(), on_call=self._wake)
        self.interruptible = False
        self._step_code: CodeType | None = None
        self._switching_since: float | None = None
        self._main = threading.get_ident()
        self._iterating = False

    # ---------------------------------------------------------------- script's view

    @property
    def rank(self) -> int:
        return self.rank_state.rank

    @property
    def world_size(self) -> int:
        return self.rank_state.size

    def protect(self, **objects: Any) -> None:
        """Hand over what belongs to the training state: modules, optimizers, schedulers, samplers, ...

        Each needs `state_dict()` and `load_state_dict()`. Call it once or several times, before `steps`.
        Raises UsageError for an object that cannot be restored.
        """
        if self._iterating:
            raise UsageError("protect() must come before the loop over steps(): recovery needs to know the whole state")
        self.rank_state.protected.add(objects)

    def steps(self, total: int) -> Iterator[Step]:
        """The steps to execute, 0 to total-1; each body must run inside `with step:`.

        After a recovery the loop goes on at the right step, which may be the same one again.
        """
        if self._iterating:
            raise UsageError("steps() can be used once per session: a spare must find its way into the loop")
        self._iterating = True
        state = self.rank_state
        if any(isinstance(value, Batches) and value.begun for value in state.protected.objects.values()):
            say_once(EARLY_BATCH)
        if state.begins_at > total:  # before training has begun: no replacement would fare better
            raise UsageError(
                f"the checkpoint that the job began from is of step {state.begins_at}, but steps({total}) ends before"
            )
        state.attach(self._before_optimizer)
        state.begin(ANNOUNCEMENT_LIMIT_S)
        step, groups = Step(self), len(state.hub.groups())
        while True:
            while state.boundary < total and state.boundary != state.gate.left:
                if self.must_recover():
                    self.recover()
                    continue
                if self.world_size > 1 and len(state.hub.groups()) > groups:
                    raise UsageError(GROUP_IN_LOOP)
                before = (state.boundary, state.generation)
                state.arrive()
                yield step
                if (state.boundary, state.generation) == before and not self.must_recover():
                    raise UsageError("the loop's body did not run inside `with step:`, so it cannot be recovered")
            if self._finish():
                return

    def digest(self) -> str:
        """SHA-256 over parameters and optimizer state; also written as a `state_digest` event."""
        return self.rank_state.digest()

    # ---------------------------------------------------------------- life

    def open(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("phoenix.session() must be opened in the main thread: recovery interrupts it by a signal")
        signal.signal(SIGNAL, self._on_signal)
        self.rank_state.open()

    def close(self, error: BaseException | None) -> None:
        left = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        if left and self._iterating:
            self.rank_state.gate.left = self.rank_state.boundary
            while not self._finish():  # a script may leave its loop early: the others must know
                pass
        elif error is not None and not isinstance(error, SystemExit):
            self.rank_state.report_failure(error)
        self.rank_state.close()

    def _finish(self) -> bool:
        """Wait until every rank is through; False if a failure called this one back into the loop."""
        try:
            self.rank_state.finish()
        except GenerationSuperseded:
            self.recover()
            return False
        return True

    # ---------------------------------------------------------------- failures

    def must_recover(self) -> bool:
        return self.rank_state.superseded()

    def is_healable(self, error: BaseException) -> bool:
        """Whether the step broke because of a failure elsewhere, rather than of the script's or this device's own."""
        if isinstance(error, StepInterrupted):
            return True
        if device_errors.of_exception(error) is not None:
            return False
        for seen in _chain(error):
            if isinstance(seen, GenerationSuperseded | PeerLost | StepInterrupted) or is_broken_collective(seen):
                return True
        # torch may report a broken collective as a bare RuntimeError that does not say so.
        return isinstance(error, RuntimeError) and self.must_recover()

    def leave_with_device(self, error: BaseException) -> None:
        """Do not return if `error` is the device's: at once, since handlers and destructors would call into it."""
        if device_errors.of_exception(error) is not None and self.rank_state.settings is not None:
            self.rank_state.report_failure(error)

    def recover(self, error: BaseException | None = None) -> None:
        """Go through generations until one has resumed. Raises JobStopped where none is announced."""
        try:
            self.rank_state.recover(ANNOUNCEMENT_LIMIT_S)
        except JobStopped as stopped:
            raise stopped from error

    def _wake(self) -> None:
        """A new generation was announced (control thread): get the training thread out of its step."""
        signal.pthread_kill(self._main, SIGNAL)

    def let_interrupt(self, step: CodeType) -> None:
        """From here on a failure elsewhere interrupts the block `with step:` in the code `step`."""
        self._step_code, self._switching_since = step, None
        self.interruptible = True

    @untraced  # it may strike in the middle of compiled code
    def _on_signal(self, _signum: int, frame: FrameType | None) -> None:
        if not self.interruptible:
            return
        stack = list(_codes(frame))
        if not _SHIELDED.isdisjoint(stack):
            return  # the step is just beginning or ending: it will look for itself
        if is_switching(stack, self._step_code):
            now = time.monotonic()
            self._switching_since = self._switching_since or now
            if now - self._switching_since < SWITCHING_LIMIT_S:
                return  # the signal comes again in a moment
        self.interruptible = False
        raise StepInterrupted

    def _before_optimizer(self, *_: Any) -> None:
        """From here to the end of the step the live state changes: no interruption, no way back."""
        self.rank_state.before_optimizer()
        self.interruptible = False
        self.rank_state.begin_changing()


class session:  # used as `with phoenix.session() as ft:`
    """Join the job: initialises torch.distributed with the backend "phoenix". A spare waits here for a rank.

    Without `phoenix run` the script runs as a world of one. Raises UsageError inside another session.
    """

    _open = False

    def __init__(self) -> None:
        self._session: Session | None = None

    def __enter__(self) -> Session:
        if session._open or dist.is_initialized():
            raise UsageError(
                "phoenix.session() initialises torch.distributed itself: remove init_process_group() from the script, "
                "and open one session only"
            )
        session._open = True
        self._session = Session()
        self._session.open()
        return self._session

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        session._open = False
        assert self._session is not None
        try:
            self._session.close(error)
        except PhoenixError as stopped:
            tell(f"phoenix: {stopped}")
            raise SystemExit(1) from None
