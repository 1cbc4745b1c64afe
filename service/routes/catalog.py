"""What runs and faults can be made of."""

from __future__ import annotations

from fastapi import APIRouter

from chaos.kinds import FAULT_KINDS
from chaos.workloads import WORKLOADS
from service import catalog
from service.routes.common import PROBLEMS, Id
from service.shapes import FaultKindList, FaultKindShape, ItemList, Json

router = APIRouter(tags=["catalog"], responses=PROBLEMS)


@router.get("/fault-kinds")
def list_fault_kinds() -> FaultKindList:
    """Every kind with the JSON Schema of its parameters: enough to build a form from."""
    return FaultKindList(items=[FaultKindShape.model_validate(kind.to_json()) for kind in FAULT_KINDS.values()])


@router.get("/scenarios")
def list_scenarios() -> ItemList:
    return ItemList(items=[scenario.to_json() for scenario in catalog.scenarios().values()])


@router.get("/scenarios/{name}")
def get_scenario(name: Id) -> Json:
    return catalog.scenario_named(name).to_json()


@router.get("/workloads")
def list_workloads() -> ItemList:
    return ItemList(items=[workload.to_json() for workload in WORKLOADS.values()])
