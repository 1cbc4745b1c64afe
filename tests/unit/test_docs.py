"""The documentation holds what it promises: its reference is that of the code, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import generate

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("name", ["rest.md", "cli.md", "scenario.md", "events.md"])
def test_the_reference_is_that_of_the_code(name: str, reference: dict[str, str]) -> None:
    assert (generate.HERE / name).read_text() == reference[name], "write it anew: make docs"


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    return generate.pages()


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_something(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        file, _, anchor = target.partition("#")
        if "://" in file:
            continue
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), f"{path.name}: {target}"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{path.name}: {target}"


def anchors(path: Path) -> set[str]:
    """As GitHub names headings: in small letters, without punctuation, spaces as hyphens."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
