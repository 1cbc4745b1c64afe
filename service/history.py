"""Finished trials as histories and comparisons take them: into the database once, and out of it by what is asked for.

How many trials there are does not matter to a reader: what there is to choose from is told by the points, of which each
gathers the trials of one code and session, and trials are read only of the points that are shown.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, and_, func, insert, or_, select, true, tuple_
from sqlalchemy.orm import Session

from chaos.compare.history import Measured, Place, in_order
from chaos.compare.rows import finite
from chaos.compare.samples import METRICS, SUCCESS, Code, TrialSample, faults_in, sample_of
from chaos.errors import ChaosError
from chaos.record import Result, Spec, TrialDirectory
from service.fitting import fit_text
from service.history_tables import DigestRow, PointRow, SampleRow

# A list of codes to choose from; any other can still be named.
MOST_CODES: Final = 500
# Rows that one query names: SQLite takes some thirty thousand values.
BATCH: Final = 1000
NO_FAULTS: Final = "{}"

log = logging.getLogger("phoenix.service")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A trial that is over, and the directory that says so."""

    spec: Spec
    sample: TrialSample
    directory: Path

    @staticmethod
    def of(spec: Spec, result: Result, directory: Path) -> Finished:
        """Raises ValueError where it was made at no time that there is."""
        return Finished(spec=spec, sample=sample_of(spec, result), directory=directory)


# --- in --------------------------------------------------------------------------------------------------------------


def add(session: Session, finished: Sequence[Finished]) -> int:
    """Those that are not there yet; returns how many these were. Of one that was moved the new place is kept."""
    found = {_identity(one.spec): one for one in finished}
    there = {row.id: row for row in session.scalars(select(SampleRow).where(SampleRow.id.in_(found)))}
    points: dict[tuple[object, ...], PointRow] = {}
    rows = []
    for identity, one in found.items():
        if identity in there:
            there[identity].place = place_of(one.directory)
            continue
        sample = one.sample
        point = _point(session, sample, points)
        _gather(point, sample)
        session.flush()
        rows.append({"id": identity, "point_id": point.id, "place": place_of(one.directory), **_columns(sample)})
    if rows:
        session.execute(insert(SampleRow), rows)
        _describe(session, [one.sample for one in found.values()])
    return len(rows)


def add_directory(session: Session, directory: TrialDirectory, result: Result) -> None:
    """A trial whose result was just read; one without a specification counts nowhere."""
    try:
        finished = Finished.of(directory.read_spec(), result, directory.path)
    except (ChaosError, ValueError) as error:
        log.warning("this trial is in no history: %s", error)
    else:
        add(session, [finished])


def known_places(session: Session, directories: Iterable[Path]) -> set[Path]:
    """Those of these directories that were taken over already."""
    places = {place_of(directory): directory for directory in directories}
    return {places[place] for place in session.scalars(select(SampleRow.place).where(SampleRow.place.in_(places)))}


def place_of(directory: Path) -> str:
    return fit_text(f"{socket.gethostname()}:{directory}", 1000)


def _identity(spec: Spec) -> str:
    return hashlib.sha256(json.dumps(spec.to_json(), sort_keys=True).encode()).hexdigest()[:32]


def _point(session: Session, sample: TrialSample, known: dict[tuple[object, ...], PointRow]) -> PointRow:
    """The one that the trial belongs to, made if it is the first."""
    values: dict[str, Any] = {
        "scenario": fit_text(sample.scenario, 200),
        "version": sample.version,
        "commit": fit_text(sample.code.commit, 64),
        "diff": fit_text(sample.code.diff, 64),
        "fingerprint": sample.fingerprint,
        "session": fit_text(sample.session, 40),
    }
    key = tuple(values.values())
    if key not in known:
        found = session.scalars(select(PointRow).filter_by(**values)).one_or_none()
        if found is None:
            found = PointRow(
                **values,
                faults=NO_FAULTS,
                trials=0,
                first_at=_at(sample),
                last_at=_at(sample),
                seeded=False,
            )
            session.add(found)
        known[key] = found
    return known[key]


def _describe(session: Session, samples: Iterable[TrialSample]) -> None:
    """What their digests stand for."""
    documents: dict[str, Mapping[str, object]] = {}
    for sample in samples:
        documents |= {sample.version: sample.shape, sample.fingerprint: sample.machine}
    there = _described(session, documents)
    session.add_all(DigestRow(digest=name, document=dict(documents[name])) for name in documents.keys() - there.keys())


def _described(session: Session, digests: Collection[str]) -> dict[str, Any]:
    rows = session.scalars(select(DigestRow).where(DigestRow.digest.in_(set(digests))))
    return {row.digest: row.document for row in rows}


def _gather(point: PointRow, sample: TrialSample) -> None:
    faults: dict[str, list[str]] = json.loads(point.faults)
    for fault, times in sample.times.items():
        seen = {*faults.get(fault, ()), *times}
        faults[fault] = [metric for metric in METRICS if metric in seen]
    point.faults = json.dumps(faults)
    point.trials += 1
    point.first_at, point.last_at = min(point.first_at, _at(sample)), max(point.last_at, _at(sample))
    point.seeded = point.seeded or sample.seeded


def _columns(sample: TrialSample) -> dict[str, Any]:
    return {
        "trial": fit_text(sample.trial, 200),
        "at": _at(sample),
        "seed": sample.seed,
        "judged": sample.judged,
        "succeeded": sample.succeeded,
        "seeded": sample.seeded,
        "times": {fault: {m: finite(value) for m, value in times.items()} for fault, times in sample.times.items()},
        "versions": dict(sample.versions),
    }


def _at(sample: TrialSample) -> str:
    return fit_text(sample.at, 40)


# --- out -------------------------------------------------------------------------------------------------------------


def by_first(first: Mapping[Code, str]) -> dict[Code, Place]:
    return {code: (at, 0) for code, at in first.items()}


def newest_points(
    session: Session,
    scenario: str,
    newest: int,
    *,
    fault: str = "",
    fingerprint: str | None = None,
    commits: Collection[str] | None = None,
    places: Callable[[Mapping[Code, str]], dict[Code, Place]] = by_first,
) -> tuple[list[PointRow], dict[Code, Place]]:
    """The last of a scenario as a history orders them (see chaos.compare.history), in no order, and the place of each
    code. `fault`: only where the scenario had it; `commits`: only of these, without changes that a working tree had
    added; `places`: from when each code was first measured.
    """
    wanted: list[ColumnElement[bool]] = [true()]
    if fault:
        wanted.append(_with_fault(session, scenario, fault))
    if fingerprint is not None:
        wanted.append(PointRow.fingerprint == fingerprint)
    if commits is not None:
        wanted.append(PointRow.diff == "")
    row = PointRow
    query = select(row.id, row.commit, row.diff, row.fingerprint, row.version, row.first_at, row.last_at, and_(*wanted))
    first: dict[Code, str] = {}
    ids, points = [], []
    for identity, commit, diff, machine, version, begun, ended, own in session.execute(
        query.where(PointRow.scenario == scenario)
    ):
        code = Code(commit=commit, diff=diff)
        first[code] = min(first.get(code, begun), begun)
        # Thousands of ancestors are too many to name in a query.
        if own and (commits is None or commit in commits):
            ids.append(identity)
            points.append(Measured(code=code, line=(machine, version), first=begun, last=ended))
    known = places(first)
    last = [ids[index] for index in in_order(points, known)[-newest:]]
    return list(session.scalars(select(PointRow).where(PointRow.id.in_(last)))), known


def points_of(session: Session, codes: Collection[Code], scenario: str | None) -> list[PointRow]:
    """All of these codes."""
    pairs = tuple_(PointRow.commit, PointRow.diff).in_([(code.commit, code.diff) for code in codes])
    return list(session.scalars(select(PointRow).where(pairs, *_of(scenario))))


def samples(session: Session, points: Sequence[PointRow]) -> tuple[TrialSample, ...]:
    """The trials of these points, oldest first."""
    by_id = {point.id: point for point in points}
    told = _described(session, [digest for point in points for digest in (point.version, point.fingerprint)])
    found = []
    for first in range(0, len(points), BATCH):
        some = [point.id for point in points[first : first + BATCH]]
        rows = session.execute(select(*SampleRow.__table__.columns).where(SampleRow.point_id.in_(some)))
        found += [_sample(by_id[row.point_id], row, told) for row in rows]
    return tuple(sorted(found, key=lambda sample: (sample.at, sample.trial)))


def faults(session: Session, scenario: str) -> list[str] | None:
    """Those of a scenario, first those that it had last; None where there is no finished trial of it."""
    texts = [text for _, text in session.execute(_choices(PointRow.scenario == scenario))]
    return list(dict.fromkeys(fault for text in texts for fault in json.loads(text))) if texts else None


def codes(session: Session, scenario: str | None = None, *, most: int | None = None) -> list[tuple[Code, int, str]]:
    """Every code that was measured with its trials and the last moment of it, the newest first."""
    last = func.max(PointRow.last_at)
    query = select(PointRow.commit, PointRow.diff, func.sum(PointRow.trials), last).where(*_of(scenario))
    rows = session.execute(query.group_by(PointRow.commit, PointRow.diff).order_by(last.desc()).limit(most))
    return [(Code(commit=commit, diff=diff), trials, at) for commit, diff, trials, at in rows]


def series(session: Session) -> list[dict[str, object]]:
    """What there is to choose from: scenario and fault with their metrics, and how much was measured of them; first the
    faults that it had last."""
    keys = (PointRow.scenario, PointRow.faults, PointRow.version, PointRow.fingerprint)
    last = func.max(PointRow.last_at)
    query = select(*keys, func.sum(PointRow.trials).label("trials"), last.label("last_at")).group_by(*keys)
    groups: dict[str, list[Row[*tuple[Any, ...]]]] = {}
    for row in session.execute(query.order_by(last.desc())):
        groups.setdefault(row.scenario, []).append(row)
    told = _described(session, [row.version for rows in groups.values() for row in rows if row.faults == NO_FAULTS])
    found: list[dict[str, object]] = []
    for scenario, rows in sorted(groups.items()):
        had = [json.loads(row.faults) or dict.fromkeys(faults_in(told[row.version]), ()) for row in rows]
        current = next((faults for row, faults in zip(rows, had, strict=True) if row.faults != NO_FAULTS), {})
        named = dict.fromkeys(fault for row in rows for fault in json.loads(row.faults)) or {"": None}
        own = {
            fault: [row for row, each in zip(rows, had, strict=True) if not fault or fault in each] for fault in named
        }
        for fault, sessions in _sessions(session, scenario, own).items():
            seen = {metric for faults in had for metric in faults.get(fault, ())}
            found.append(
                {
                    "scenario": scenario,
                    "fault": fault,
                    "current": fault in current or not current,
                    "metrics": [metric for metric in METRICS if metric == SUCCESS or metric in seen],
                    "trials": sum(row.trials for row in own[fault]),
                    "sessions": sessions,
                    "last_at": max(row.last_at for row in own[fault]),
                    "fingerprints": sorted({row.fingerprint for row in own[fault]}),
                }
            )
    return found


def _sessions(session: Session, scenario: str, own: Mapping[str, Sequence[Row[*tuple[Any, ...]]]]) -> dict[str, int]:
    """In how many each fault was; `own`: groups of points that had it."""
    counted = func.count(PointRow.session.distinct())
    columns = []
    for rows in own.values():
        having = tuple_(PointRow.faults, PointRow.version).in_({(row.faults, row.version) for row in rows})
        columns.append(counted.filter(having))
    counts = session.execute(select(*columns).where(PointRow.scenario == scenario)).one()
    return dict(zip(own, counts, strict=True))


def state(session: Session, scenario: str | None = None) -> int:
    """Of a scenario or of all, another one after each trial that was added; none is ever taken away or changed."""
    return int(session.scalar(select(func.sum(PointRow.trials)).where(*_of(scenario))) or 0)


def machines(session: Session) -> list[dict[str, object]]:
    """Every machine that measured; one whose trials do not name it has the fingerprint ""."""
    extent = (func.sum(PointRow.trials), func.count(PointRow.session.distinct()))
    query = select(PointRow.fingerprint, *extent).group_by(PointRow.fingerprint).order_by(func.min(PointRow.id))
    rows = session.execute(query).all()
    machine = _described(session, [fingerprint for fingerprint, _, _ in rows])
    return [
        {"fingerprint": fingerprint, "machine": machine[fingerprint], "trials": trials, "sessions": sessions}
        for fingerprint, trials, sessions in rows
    ]


def commits(session: Session) -> set[str]:
    """All that were measured without changes that a working tree had added."""
    return set(session.scalars(select(PointRow.commit).where(PointRow.diff == "").distinct()))


def is_measured(session: Session, code: str) -> bool:
    """Whether there is a finished trial of the code of this name."""
    commit, _, diff = code.partition("-")
    same = (PointRow.commit == commit, PointRow.diff == diff)
    return session.scalar(select(PointRow.id).where(*same).limit(1)) is not None


def any_seeded(session: Session) -> bool:
    return session.scalar(select(PointRow.id).where(PointRow.seeded).limit(1)) is not None


def _choices(*where: ColumnElement[bool]) -> Select[str, str]:
    """Scenarios with the texts of their faults, the newest first: few, however many points there are."""
    query = select(PointRow.scenario, PointRow.faults).where(*where).group_by(PointRow.scenario, PointRow.faults)
    return query.order_by(func.max(PointRow.last_at).desc())


def _with_fault(session: Session, scenario: str, fault: str) -> ColumnElement[bool]:
    """Of points of which no trial was judged, the shape of the scenario says what faults it had."""
    same = PointRow.scenario == scenario
    texts = [text for _, text in session.execute(_choices(same))]
    having = PointRow.faults.in_([text for text in texts if fault in json.loads(text)])
    if NO_FAULTS not in texts:
        return and_(same, having)
    versions = session.scalars(select(PointRow.version).where(same, PointRow.faults == NO_FAULTS).distinct())
    told = _described(session, list(versions))
    shapes = [version for version, shape in told.items() if fault in faults_in(shape)]
    return and_(same, or_(having, and_(PointRow.faults == NO_FAULTS, PointRow.version.in_(shapes))))


def _of(scenario: str | None) -> tuple[ColumnElement[bool], ...]:
    return () if scenario is None else (PointRow.scenario == scenario,)


def _sample(point: PointRow, row: Any, told: Mapping[str, Any]) -> TrialSample:
    return TrialSample(
        trial=row.trial,
        scenario=point.scenario,
        version=point.version,
        shape=told[point.version],
        code=Code(commit=point.commit, diff=point.diff),
        machine=told[point.fingerprint],
        versions=row.versions,
        session=point.session,
        seed=row.seed,
        at=row.at,
        judged=row.judged,
        succeeded=row.succeeded,
        times={
            fault: {metric: math.inf if value is None else value for metric, value in times.items()}
            for fault, times in row.times.items()
        },
        seeded=row.seeded,
    )
