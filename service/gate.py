"""The door of one service: which tokens it takes, and how often it may be tried."""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time

from sqlalchemy.orm import Session

from service import tokens
from service.attempts import Attempts
from service.callers import LOCAL, Caller
from service.control_tables import Token
from service.problems import Problem

# Browsers ask for nothing by this scheme, so no dialogue of theirs covers our page.
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="phoenix"'}

log = logging.getLogger("phoenix.service")


class Gate:
    """`secret` lets in whoever can read the data directory: the command line beside the service."""

    def __init__(self, *, open_house: bool) -> None:
        """`open_house`: without tokens everybody may in, since the service can be reached from this machine only."""
        self.secret = secrets.token_urlsafe(32)
        self._open_house = open_house
        self._attempts = Attempts()
        self._lock = threading.Lock()

    def required(self, session: Session) -> bool:
        return not self._open_house or tokens.any_made(session)

    def of_token(self, session: Session, text: str, address: str) -> Token | Caller:
        """Raises Problem 401, or 429 where this address has failed too often. A right token is never kept waiting."""
        if hmac.compare_digest(text.encode(), self.secret.encode()):
            return LOCAL
        if (token := tokens.find(session, text)) is not None:
            return token
        with self._lock:
            wait_s, at = self._attempts.wait_s(address, time.monotonic()), time.monotonic()
            if wait_s == 0:
                self._attempts.fail(address, at)
        if wait_s > 0:
            headers = {"Retry-After": str(int(wait_s) + 1)}
            detail = f"too many wrong tokens from {address}; try again in {int(wait_s) + 1} s"
            raise Problem(429, "too-many-attempts", detail, headers=headers)
        log.warning("a wrong token was shown from %s", address)
        raise Problem(401, "wrong-token", "this token is not known, expired or revoked", headers=CHALLENGE)
