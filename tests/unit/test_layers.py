"""The import law and the size of files and functions, held over every file of the repository."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("phoenix_core", "chaos", "service", "dashboards", "benchmarks")
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 70

# What a package may import of ours, apart from itself; a dotted name allows that module only.
ALLOWED: dict[str, frozenset[str]] = {
    "phoenix_core": frozenset(),
    "chaos": frozenset({f"phoenix_core.{name}" for name in ("errors", "events", "timeline", "world", "xids")}),
    "service": frozenset({"chaos"}),
    "dashboards": frozenset(),
    "benchmarks": frozenset({"chaos", "phoenix_core"}),
}
# The composition root of `phoenix serve` mounts the pages beside the API: one process, one port.
EXCEPTIONS = frozenset({("service/server.py", "dashboards")})
TORCH_FREE = (
    "errors", "world", "events", "timeline", "placement", "membership", "roster", "detection", "protocol", "settings",
    "wire", "storeserver", "tripwire", "xids", "device_errors", "quarantine", "coordinator", "agent", "launcher",
    "ledger", "witness", "succession", "keeper", "xid_reports", "health",
)  # fmt: skip


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imported_modules(tree: ast.Module, package: str) -> Iterator[str]:
    """Absolute names of everything imported anywhere in the file: at the top, in functions, for types only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            # `from phoenix_core import events` names a module as much as `from phoenix_core.events import Event`.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def forbidden(file: str, modules: Iterator[str]) -> list[str]:
    """Imports of ours that the law does not allow to `file` (a path relative to the repository)."""
    package = file.split("/")[0]
    bad = []
    for module in modules:
        top = module.split(".")[0]
        if top not in PACKAGES or top == package or (file, top) in EXCEPTIONS:
            continue
        if not any(module == name or module.startswith(name + ".") for name in ALLOWED[package]):
            bad.append(module)
    return bad


def test_import_law() -> None:
    broken = {}
    for path in sources():
        relative = path.relative_to(ROOT)
        package = ".".join(relative.parent.parts)
        bad = forbidden(str(relative), imported_modules(ast.parse(path.read_text()), package))
        if bad:
            broken[str(relative)] = bad
    assert broken == {}


@pytest.mark.parametrize(
    ("file", "code", "expected"),
    [
        ("chaos/trial.py", "from phoenix_core.events import Event", []),
        ("chaos/trial.py", "from phoenix_core import events", []),
        ("chaos/trial.py", "import phoenix_core.session", ["phoenix_core.session"]),
        ("chaos/trial.py", "def f():\n    from service.app import x", ["service.app.x"]),
        ("phoenix_core/events.py", "import chaos", ["chaos"]),
        ("phoenix_core/a.py", "from .events import Event", []),
        ("chaos/injectors/process.py", "from ..faults import Fault", []),
        ("service/store.py", "import dashboards.app", ["dashboards.app"]),
        ("service/server.py", "import dashboards.app", []),
        ("service/routes/runs.py", "import benchmarks.workloads.gpt", ["benchmarks.workloads.gpt"]),
        ("dashboards/app.py", "import chaos.faults", ["chaos.faults"]),
        ("benchmarks/recovery.py", "import chaos.trial, phoenix_core.session", []),
    ],
)
def test_the_law_sees_what_it_must(file: str, code: str, expected: list[str]) -> None:
    package = ".".join(Path(file).parent.parts)
    assert forbidden(file, imported_modules(ast.parse(code), package)) == expected


def test_no_test_is_imported_by_the_product() -> None:
    for path in sources():
        package = ".".join(path.relative_to(ROOT).parent.parts)
        modules = imported_modules(ast.parse(path.read_text()), package)
        assert not any(module.split(".")[0] in ("tests", "examples", "pytest") for module in modules), path


def test_pure_modules_do_not_load_torch() -> None:
    """Asked of a fresh interpreter, so that imports by way of other modules count as well."""
    names = [f"phoenix_core.{name}" for name in TORCH_FREE if (ROOT / "phoenix_core" / f"{name}.py").exists()]
    code = f"import sys, {', '.join(names)}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or f"one of {names} loads torch"


def test_reading_trials_needs_no_library_of_comparisons() -> None:
    """A training environment has neither scipy nor ruptures, and samples are read wherever a trial is."""
    unwanted = ("torch", "scipy", "ruptures")
    code = f"import sys, chaos.collect, service.comparing; print([name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_files_are_short() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    """Migrations are exempt: one is a list of declarations, written once and never changed."""
    long = {}
    for path in (path for path in sources() if path.parent.name != "versions"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = length
    assert long == {}
