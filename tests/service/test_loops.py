"""What fails in the background is said in one line where the database is the reason, and does not end the thread."""

from __future__ import annotations

import logging
import threading

import pytest
from sqlalchemy.exc import OperationalError

from service.loops import Loop


@pytest.mark.parametrize(
    ("failure", "traceback"),
    [(OperationalError("insert", None, Exception("disk is full")), False), (ValueError("disk is full"), True)],
)
def test_a_loop_goes_on_after_a_failure(
    failure: Exception, traceback: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loop, "AFTER_FAILURE_S", 0.01)
    failed, again = threading.Event(), threading.Event()

    def work() -> None:
        if failed.is_set():
            again.set()
            return
        failed.set()
        raise failure

    loop = Loop("the executor", 0.01, work)
    with caplog.at_level(logging.ERROR, "phoenix.service"):
        loop.start()
        assert again.wait(10)
        loop.stop()
    (record,) = caplog.records
    assert "the executor failed" in record.getMessage() and bool(record.exc_info) is traceback
    assert ("disk is full" in record.getMessage()) is not traceback
