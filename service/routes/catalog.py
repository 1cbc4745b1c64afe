"""What runs and faults can be made of."""

from __future__ import annotations

from fastapi import APIRouter

from chaos.kinds import FAULT_KINDS
from chaos.suite import Suite
from chaos.workloads import WORKLOADS
from service import catalog
from service.routes.common import PROBLEMS, Id, ServiceOf
from service.shapes import FaultKindList, FaultKindShape, ItemList, Json, SuiteList, SuiteShape

router = APIRouter(tags=["catalog"], responses=PROBLEMS)


@router.get("/fault-kinds")
def list_fault_kinds(service: ServiceOf) -> FaultKindList:
    """Every kind with the JSON Schema of its parameters, and whether this host can do it: enough for a form."""
    items = []
    for kind in FAULT_KINDS.values():
        trouble = service.host.trouble(kind.kind)
        document = {**kind.to_json(), "supported": not trouble, "unsupported_reason": trouble or None}
        items.append(FaultKindShape.model_validate(document))
    return FaultKindList(items=items)


@router.get("/scenarios")
def list_scenarios() -> ItemList:
    """Those that ship with PHOENIX, each in full."""
    return ItemList(items=[scenario.to_json() for scenario in catalog.scenarios().values()])


@router.get("/scenarios/{name}")
def get_scenario(name: Id) -> Json:
    """In full, as a run of it would have it."""
    return catalog.scenario_named(name).to_json()


@router.get("/suites")
def list_suites() -> SuiteList:
    """Those that ship with PHOENIX."""
    return SuiteList(items=[_suite(suite) for suite in catalog.suites().values()])


@router.get("/suites/{name}")
def get_suite(name: Id) -> SuiteShape:
    """What it runs, and how many trials that are."""
    return _suite(catalog.suite_named(name))


def _suite(suite: Suite) -> SuiteShape:
    return SuiteShape(
        name=suite.name,
        title=suite.description or suite.name,
        description=suite.description,
        scenarios=list(dict.fromkeys(trial.scenario.name for trial in suite.trials)),
        trials=len(suite.trials),
    )


@router.get("/workloads")
def list_workloads() -> ItemList:
    """What a scenario may train, with the parameters that each takes."""
    return ItemList(items=[workload.to_json() for workload in WORKLOADS.values()])
