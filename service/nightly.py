"""`phoenix nightly`: a whole suite here and now, without a service."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from chaos.errors import ChaosError, TrialError
from chaos.nightly import Nightly, plan, plan_document, refusals
from chaos.record import check_report, write_text
from chaos.runtimes import with_extra
from chaos.suite import Suite, load_suite
from chaos.summary import Entry, Summary, junit, markdown, tally
from chaos.trial import EXIT_CODES, EXIT_INTERRUPTED, EXIT_USAGE, interruptible
from chaos.verdict import Verdict
from service.foreground import Watch
from service.report import STYLES
from service.settings import data_directory

_STYLES: Final = {**STYLES, "KNOWN": "yellow", "SKIPPED": "dim"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """As typed; `dry_run`: only say what would run. A report may be `-`: standard output, all of it."""

    suite: Path
    directory: Path | None
    junit: Path | None
    markdown: Path | None
    as_json: bool
    strict: bool
    dry_run: bool

    @property
    def words(self) -> TextIO:
        """Where to tell people how it goes: not into a report on standard output."""
        return sys.stderr if _is_output(self.junit) or _is_output(self.markdown) else sys.stdout


def run_nightly(options: Options) -> int:
    """The exit code: 0 pass, 1 fail, 2 a suite or directory that cannot be used, 3 unknown, 130 interrupted."""
    try:
        suite = load_suite(options.suite)
        runtimes = with_extra(os.environ.get("PHOENIX_RUNTIMES", ""))
        if options.dry_run:
            refused = refusals(suite, runtimes)
            print(json.dumps(plan_document(suite, refused)) if options.as_json else plan(suite, refused))
            return 0
        if [options.as_json, *map(_is_output, (options.junit, options.markdown))].count(True) > 1:
            raise ChaosError("standard output takes one document: give `-` or --json once, and files for the others")
        for report in filter(None, (options.junit, options.markdown)):
            if not _is_output(report):
                check_report(report)  # a night is long, and its report must not be what fails in the morning
        directory = options.directory or _new_directory(suite)
        nightly = Nightly(suite, directory, runtimes=runtimes, strict=options.strict)
    except ChaosError as error:
        print(f"phoenix: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        interrupted = _run(nightly, options)
        summary = nightly.finish()
        for path, text in ((options.junit, junit(summary)), (options.markdown, markdown(summary))):
            if _is_output(path):
                print(text, end="")
            elif path is not None:
                write_text(path, text)
    except TrialError as error:
        print(f"phoenix: {error}", file=sys.stderr)
        return EXIT_CODES[Verdict.UNKNOWN]
    _report(summary, nightly.directory, options)
    if interrupted:
        print(f"phoenix: {interrupted}; what was started has been ended", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_CODES[summary.verdict]


def _run(nightly: Nightly, options: Options) -> str | None:
    """All trials; what interrupted them, if anything did."""
    console = Console(highlight=False, soft_wrap=True, file=options.words)
    trials = nightly.suite.trials
    visible = not options.as_json and options.words is sys.stdout and sys.stdout.isatty()
    with interruptible() as stop:
        for index, trial in enumerate(trials, 1):
            with Watch(trial.scenario, visible=visible, title=f"{index}/{len(trials)} {trial.name}: ") as watch:
                entry = nightly.run(trial, observer=watch.observe if visible else None, stop=stop)
            if not options.as_json:
                console.print(_line(entry))
        return stop.reason


def _line(entry: Entry) -> Text:
    """One trial in one line: what came of it, how long it took, and why it did not pass."""
    times = (
        f"  recovered in {', '.join(f'{seconds:.2f}' for seconds in entry.recovery_s)} s" if entry.recovery_s else ""
    )
    reason = f"  {entry.reason.partition(chr(10))[0]}" if entry.reason else times
    state = Text(f"{entry.state.value:<8}", style=_STYLES[entry.state.value])
    return Text.assemble(state, f"{entry.name}  {entry.seconds:.1f} s{reason}")


def _report(summary: Summary, directory: Path, options: Options) -> None:
    if options.as_json:
        print(json.dumps({**summary.to_json(), "directory": str(directory)}))
        return
    print(f"{summary.verdict.value}  {tally(summary)}", file=options.words)
    if summary.goodput is not None:
        print(f"goodput {summary.goodput.share:.1%}", file=options.words)
    print(f"directory: {directory}", file=options.words)


def _is_output(report: Path | None) -> bool:
    return report is not None and str(report) == "-"


def _new_directory(suite: Suite) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return data_directory(None) / "nightly" / f"{suite.name}-{stamp}-{os.getpid()}"
