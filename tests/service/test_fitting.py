"""Values that a database could refuse, made to fit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.database import Database, DatabaseError
from service.fitting import fit_number, fit_optional, fit_text, to_json_text


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"loss": float("nan"), "all": [float("inf"), 1.5]}, {"loss": None, "all": [None, 1.5]}),
        ({"a\0b": "\0"}, {"a\ufffdb": "\ufffd"}),
        ("\\u0000", "\\u0000"),
        ("\\\0", "\\\ufffd"),
    ],
)
def test_json_that_postgres_would_refuse(value: object, kept: object) -> None:
    assert json.loads(to_json_text(value)) == kept


@given(st.recursive(st.none() | st.booleans() | st.text() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_other_json_stays_as_it_is(value: object) -> None:
    if "\0" not in json.dumps(value, ensure_ascii=False).replace("\\u0000", "\0"):
        assert json.loads(to_json_text(value)) == value


def test_texts_and_numbers_are_cut_to_their_columns() -> None:
    assert fit_text("x" * 50, 40) == "x" * 40
    assert fit_text("a\0b\ud800", 40) == "a\ufffdb?"
    assert fit_optional(None, 3) is None and fit_optional(12345, 3) == "123"
    assert fit_number(2**31) is None and fit_number(2**31, 64) == 2**31 and fit_number(-(2**31)) == -(2**31)
    assert fit_number(True) is None and fit_number("1") is None and fit_number(None) is None


def test_a_url_of_another_database_is_refused_in_words() -> None:
    for url in ("mysql://x", "phoenix.db", "", "postgresql+asyncpg://x"):
        with pytest.raises(DatabaseError, match="postgresql://user:password@host/name"):
            Database(url)
    assert str(Database("postgres://a:b@c/d").engine.url) == "postgresql+psycopg://a:***@c/d"
