"""Writes docs/reference/ from the code: `python -m docs.generate`. With --check it only says whether it is current.

What stands there is nowhere written by hand, so it cannot be wrong: the REST API from its OpenAPI document, the
Python client from its signatures, the command line from its help, scenario and suite files from their JSON Schemas,
events from their list.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typer import Typer
from typer.testing import CliRunner

from chaos.kinds import FAULT_KINDS
from chaos.scenario import scenario_schema
from chaos.workloads import WORKLOADS
from phoenix_core.events import KINDS
from service import client
from service.app import create_app
from service.cli import app
from service.settings import Settings

HERE = Path(__file__).parent / "reference"
SERVICE = "http://127.0.0.1:8642"
# A body of each shape that is sent, for the lines to copy; a test holds them against the shapes.
BODIES: Mapping[str, Mapping[str, object]] = {
    "NewRun": {"scenario_name": "kill-one", "trials": 5, "reason": "to see it heal"},
    "Cancel": {"reason": "not needed any more"},
    "Why": {"reason": "ada asked for it"},
    "Revocation": {"reason": "ada has left"},
    "NewFault": {"kind": "process_kill", "target": {"rank": 2}, "reason": "to see it heal"},
    "NewHalt": {"reason": "the switch is being replaced", "ttl_s": 3600},
    "Release": {"reason": "it is replaced"},
    "NewSchedule": {"name": "nightly", "kind": "cron", "cron": "0 2 * * *", "run": {"suite": "nightly"}},
    "Preview": {"kind": "cron", "cron": "0 2 * * *", "timezone": "Europe/Berlin"},
    "NewWebhook": {"url": "https://chat.example/hook", "events": ["run.failed", "schedule.stale"]},
    "NewToken": {"name": "ci", "role": "operator"},
    "NewAnnotation": {"text": "new kernel", "scenario": "kill-one"},
    "NewDecision": {"code": "0f" * 20, "state": "acknowledged", "reason": "the copy is verified twice"},
    "NewBaseline": {"scenario": "kill-one", "code": "v1.4", "reason": "the release that is in use"},
    "Login": {"token": "phx_..."},
}
NOTE = "<!-- Written by `python -m docs.generate` from the code; do not edit. -->\n"
WIDTH = "100"

Json = Mapping[str, Any]


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return {
        "rest.md": rest(),
        "python.md": python(),
        "cli.md": command_line(),
        "scenario.md": scenario_file(),
        "events.md": events(),
    }


# --- REST ------------------------------------------------------------------------------------------------------------


def openapi() -> Json:
    with tempfile.TemporaryDirectory() as directory:
        return create_app(Settings(directory=Path(directory)), follow=False).openapi()


def rest() -> str:
    document = openapi()
    lines = [
        "# REST API",
        "",
        NOTE,
        str(document["info"].get("description", "")),
        "",
        "Errors are problem documents (RFC 9457): `type`, `title`, `status`, `detail`, `instance`, and `errors` for "
        "fields. The OpenAPI document is at `/openapi.json` of a running service.",
        "",
    ]
    by_tag: dict[str, list[tuple[str, str, Json]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tag = (operation.get("tags") or ["service"])[0]
            by_tag.setdefault(tag, []).append((method.upper(), path, operation))
    for tag, operations in by_tag.items():
        lines += [f"## {tag}", ""]
        for method, path, operation in operations:
            lines += [*_operation(method, path, operation, document), ""]
    lines += ["## Shapes", ""]
    for name, schema in document["components"]["schemas"].items():
        if not name.endswith("ValidationError"):
            lines += [*_shape(name, schema), ""]
    return "\n".join(lines).rstrip() + "\n"


def _operation(method: str, path: str, operation: Json, document: Json) -> Iterator[str]:
    yield f"### `{method} {path}`"
    yield ""
    if told := operation.get("description") or operation.get("summary"):
        yield str(told)
        yield ""
    parameters = [p for p in operation.get("parameters", ()) if p["in"] != "path"]
    for parameter in parameters:
        told = parameter.get("description") or ""
        where = "" if parameter["in"] == "query" else f" ({parameter['in']})"
        yield f"- `{parameter['name']}`{where}: {_type(parameter['schema'])}{'. ' + told if told else ''}"
    if body := body_of(operation):
        yield f"- body: {_type(body)}"
    for status, answer in operation.get("responses", {}).items():
        if status.startswith("2"):
            schema = answer.get("content", {}).get("application/json", {}).get("schema")
            yield f"- {status}: {_type(schema) if schema else answer.get('description', '')}"
    yield ""
    yield f"    {_curl(method, path, operation, document)}"


def _curl(method: str, path: str, operation: Json, document: Json) -> str:
    """A line to copy. In place of a name in capitals comes one of yours."""
    address = SERVICE + re.sub(r"{(\w+)}", lambda found: found[1].upper(), path)
    needed = [p for p in operation.get("parameters", ()) if p.get("required")]
    query = "&".join(f"{p['name']}={_value(p, document)}" for p in needed if p["in"] == "query")
    words = ["curl", *(["-N"] if path.endswith("/stream") else []), *(["-X", method] if method != "GET" else [])]
    words.append(f"'{address}?{query}'" if query else address)
    words += [f"-H '{p['name']}: *'" for p in needed if p["in"] == "header"]
    if body := body_of(operation):
        words += ["-H 'Content-Type: application/json'", f"-d '{json.dumps(BODIES[shape_name(body)])}'"]
    return " ".join(words)


def _value(parameter: Json, document: Json) -> str:
    schema = parameter["schema"]
    known = document["components"]["schemas"].get(shape_name(schema), schema)
    return str(known["enum"][0]) if "enum" in known else str(parameter["name"]).upper()


def body_of(operation: Json) -> Json | None:
    """The schema of what is sent as JSON."""
    found: Json | None = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    return found


def shape_name(schema: Json) -> str:
    """Of a body, which may be one that can be left out."""
    found = schema.get("$ref") or next((one["$ref"] for key in ("allOf", "anyOf") for one in schema.get(key, ())), "")
    return str(found).rpartition("/")[2]


def _shape(name: str, schema: Json) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    if told := schema.get("description"):
        yield " ".join(str(told).split())
        yield ""
    if "enum" in schema:
        yield ", ".join(f"`{value}`" for value in schema["enum"])
    required = set(schema.get("required", ()))
    for field, rule in schema.get("properties", {}).items():
        told = f". {rule['description']}" if rule.get("description") else ""
        yield f"- `{field}`{'' if field in required else ' (may be left out)'}: {_type(rule)}{told}"


def _type(rule: Json) -> str:
    """A JSON Schema in a few words."""
    if "$ref" in rule:
        name = str(rule["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    variants = rule.get("anyOf") or rule.get("oneOf")
    if variants:
        return " or ".join(_type(variant) for variant in variants)
    if "enum" in rule:
        return ", ".join(f"`{value}`" for value in rule["enum"])
    if "const" in rule:
        return f"`{str(rule['const']).lower()}`"
    if rule.get("type") == "array":
        return f"list of {_type(rule.get('items', {}))}"
    words = str(rule.get("format") or rule.get("type") or "anything")
    limits = [f"{word} {rule[key]}" for key, word in _LIMITS.items() if key in rule]
    default = f", default `{rule['default']}`" if rule.get("default") not in (None, {}, []) else ""
    return words + (f" ({', '.join(limits)})" if limits else "") + default


_LIMITS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "maxLength": "at most", "pattern": "like"}


# --- the Python client -----------------------------------------------------------------------------------------------


def python() -> str:
    told, example = inspect.cleandoc(client.__doc__ or "").split("\n\n", 1)
    lines = ["# The Python client", "", NOTE, told, ""]
    lines += ["```python", "import os", "", "from service.client import Client", "", example, "```", ""]
    lines += ["`Json` is `dict[str, Any]`, as [REST](rest.md) has it; any resource is a `get` or `post` away.", ""]
    for error in (client.ClientError, client.NoAnswer):
        lines += [f"## `{error.__name__}`", "", inspect.getdoc(error) or "", ""]
    lines += [f"## `Client{_signature(client.Client.__init__)}`", "", inspect.getdoc(client.Client) or "", ""]
    for name, method in vars(client.Client).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            lines += [f"### `{name}{_signature(method)}`", ""]
            lines += [inspect.getdoc(method) or "", ""] if method.__doc__ else []
    return "\n".join(lines).rstrip() + "\n"


def _signature(method: Callable[..., object]) -> str:
    """As a caller has it: without `self`, and without what `__init__` returns."""
    found = inspect.signature(method)
    own = [parameter for parameter in found.parameters.values() if parameter.name != "self"]
    returned = inspect.Signature.empty if method.__name__ == "__init__" else found.return_annotation
    told = str(found.replace(parameters=own, return_annotation=returned))
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", told)


# --- the command line ------------------------------------------------------------------------------------------------


def command_line() -> str:
    lines = ["# The command line", "", NOTE]
    lines += ["Exit codes: 0 pass, 1 fail, 2 usage, 3 unknown (it could not be judged), 130 interrupted.", ""]
    for name in sorted(commands(app)):
        lines += [f"## `phoenix {name}`", "", "```text", _help(name.split()), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def commands(of: Typer, prefix: str = "") -> Iterator[str]:
    """The names of all commands, those of groups with the group's."""
    for command in of.registered_commands:
        assert command.callback is not None
        if not command.hidden:
            yield prefix + (command.name or command.callback.__name__.replace("_", "-"))
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{prefix}{group.name} ")


def _help(command: list[str]) -> str:
    if command == ["run"]:  # the runtime's own command line
        environment = {**os.environ, "COLUMNS": WIDTH}
        run = [sys.executable, "-m", "phoenix_core", "run", "--help"]
        return subprocess.run(run, capture_output=True, text=True, check=True, env=environment).stdout.strip()
    answer = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH})
    return "\n".join(line.rstrip() for line in answer.output.strip().splitlines()).replace(
        "Usage: root", "Usage: phoenix"
    )


# --- scenario files --------------------------------------------------------------------------------------------------


def scenario_file() -> str:
    schema: Json = scenario_schema()
    lines = ["# Scenario files", "", NOTE, "YAML or JSON; `phoenix schema` prints the JSON Schema. Fields:", ""]
    lines += _fields(schema)
    faults: Json = schema["properties"]["faults"]["items"]
    lines += ["", "## Faults", "", "Each entry of `faults`:", "", *_fields(faults)]
    for part in ("target", "trigger"):
        forms = faults["properties"][part]["oneOf"]
        lines += ["", f"## {part.capitalize()}s", ""]
        lines += [
            f"- `{{{', '.join(_pair(name, rule) for name, rule in form['properties'].items())}}}`" for form in forms
        ]
    lines += ["", "## Kinds of fault", ""]
    for kind in FAULT_KINDS.values():
        document = kind.to_json()
        lines += [f"### `{kind.kind}`", "", kind.description, ""]
        lines += [f"- fidelity: {document['fidelity']}{'; lasts until reverted' if kind.lasting else ''}"]
        lines += [f"- targets: {_names(document['targets'])}; triggers: {_names(document['triggers'])}"]
        lines += [*_fields(kind.params_schema), ""]
    lines += ["## Workloads", ""]
    for workload in WORKLOADS.values():
        lines += [f"### `{workload.name}`", "", f"{workload.title}. {workload.description}", ""]
        lines += [f"- phases: {_names(workload.phases)}", *_fields(workload.options_schema), ""]
    return "\n".join(lines).rstrip() + "\n"


def _fields(schema: Json) -> list[str]:
    required = set(schema.get("required", ()))
    return [
        f"- `{name}`{' (required)' if name in required else ''}: {_field(rule)}"
        for name, rule in schema.get("properties", {}).items()
    ]


def _field(rule: Json) -> str:
    told = [str(rule[key]).rstrip(".") for key in ("title", "description") if rule.get(key)]
    inner = rule.get("properties")
    kind = "object with " + ", ".join(f"`{name}`" for name in inner) if inner else _plain_type(rule)
    return ". ".join([kind, *told])


def _plain_type(rule: Json) -> str:
    forms = rule.get("oneOf")
    return "see below" if forms and all(form.get("type") == "object" for form in forms) else _type(rule)


def _pair(name: str, rule: Json) -> str:
    return f"{name}: {_type(rule).replace('`', '')}"


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


# --- events ----------------------------------------------------------------------------------------------------------


def events() -> str:
    lines = [
        "# Events",
        "",
        NOTE,
        "One JSON object per line, one file per process: `kind`, `at` (monotonic ns), `host`, `boot`, and where they "
        "apply `node`, `worker`, `generation`, `rank`, `step`; the rest is in `data`.",
        "",
        "| kind | what happened |",
        "| --- | --- |",
    ]
    lines += [f"| `{kind}` | {told.replace('|', chr(92) + '|')} |" for kind, told in KINDS.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/reference/ from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is not current")
    check: bool = parser.parse_args().check
    HERE.mkdir(exist_ok=True)
    stale = [name for name, text in pages().items() if not _is_current(HERE / name, text)]
    if not check:
        for name, text in pages().items():
            (HERE / name).write_text(text)
    print(f"{'not current' if check else 'written'}: {', '.join(stale) or 'nothing'}")
    return int(check and bool(stale))


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text


if __name__ == "__main__":
    raise SystemExit(main())
