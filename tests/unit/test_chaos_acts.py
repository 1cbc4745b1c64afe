"""What an order may name as an exception: classes of exceptions, and nothing that could be called in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.agent.acts import error_of
from chaos.agent.running import Refused


def test_an_exception_has_its_text_and_its_code() -> None:
    error = error_of({"error": "OSError", "text": "no such device", "code": 700})
    assert (type(error), str(error), vars(error)["error_code"]) == (OSError, "no such device", 700)


@pytest.mark.parametrize(
    "name", ["os.system", "subprocess.Popen", "exec", "KeyboardInterrupt", "nowhere", "os.nowhere"]
)
def test_what_is_no_exception_is_refused_and_never_called(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "mark"
    text = f"open({str(mark)!r}, 'w')" if name == "exec" else f"touch {mark}"
    with pytest.raises(Refused, match="is no class of exceptions"):
        error_of({"error": name, "text": text})
    assert not mark.exists()


def test_no_module_is_imported_for_an_exception() -> None:
    with pytest.raises(Refused, match=r"there is no exception this\.Error: this process has not imported this"):
        error_of({"error": "this.Error", "text": "the Zen of Python would be printed"})


def test_an_exception_that_wants_more_than_a_text_is_refused() -> None:
    with pytest.raises(Refused, match="UnicodeDecodeError does not take a text alone"):
        error_of({"error": "UnicodeDecodeError", "text": "x"})
