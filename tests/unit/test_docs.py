"""The documentation holds what it promises: its reference is that of the code, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from chaos.scenario import Scenario
from chaos.suite import suite_from
from docs import generate

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("name", ["rest.md", "python.md", "cli.md", "scenario.md", "events.md"])
def test_the_reference_is_that_of_the_code(name: str, reference: dict[str, str]) -> None:
    assert (generate.HERE / name).read_text() == reference[name], "write it anew: make docs"


def test_bodies_to_copy_are_of_their_shapes() -> None:
    document = generate.openapi()
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    shapes = {generate.shape_name(body) for operation in operations if (body := generate.body_of(operation))}
    assert shapes == generate.BODIES.keys()
    assert [one["operationId"] for one in operations if not one.get("description")] == [], "each says what it does"
    assert [name for name in document["components"]["schemas"] if "__" in name] == [], "no two have one name"
    for name in shapes:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(dict(generate.BODIES[name]))


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


def typed_commands() -> list[tuple[str, str]]:
    """(file, command) of every line that a reader is told to type."""
    found = []
    for path in WRITTEN:
        lines = re.findall(r"^(?: {4}|)(phoenix [a-z].*)$", path.read_text(), re.MULTILINE)
        lines += re.findall(r"^\s+- run: (phoenix .*)$", path.read_text(), re.MULTILINE)
        found += [(path.name, line) for line in lines if "reference" not in path.parts]
    return found


@pytest.mark.parametrize(("file", "line"), typed_commands())
def test_commands_to_type_are_those_of_the_command_line(file: str, line: str, reference: dict[str, str]) -> None:
    words = line.partition("#")[0].split()[1:]
    sections = dict(
        re.findall(r"^## `phoenix ([a-z ]+)`\n\n```text\n(.*?)```", reference["cli.md"], re.MULTILINE | re.DOTALL)
    )
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in sections), None)
    assert name is not None, f"{file}: there is no command {words[0]!r}"
    for option in (word.partition("=")[0] for word in words if word.startswith("--") and name != "run"):
        assert option in sections[name], f"{file}: phoenix {name} has no {option}"


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_scenarios_and_suites_in_the_text_can_be_run(path: Path) -> None:
    blocks = [
        yaml.safe_load(block)
        for block in re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    ]
    documents = [block for block in blocks if isinstance(block, dict)]
    scenarios = {f"{one['name']}.yaml": one for one in documents if "workload" in one}
    for one in scenarios.values():
        Scenario.from_json(one)
    for suite in (one for one in documents if "scenarios" in one):
        entries = [{"scenario": scenarios[entry.pop("file")], **entry} for entry in suite["scenarios"]]
        suite_from({**suite, "scenarios": entries}, path.parent)
