"""Two codes compared, from the trials that the service knows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from chaos.compare.comparison import Comparison
from chaos.revisions import NoSamples
from service.comparison_shapes import ComparisonShape
from service.known import Known
from service.patterns import REVISION_NAME
from service.problems import Problem
from service.routes.common import PROBLEMS
from service.routes.history import KnownOf

router = APIRouter(tags=["comparisons"], responses=PROBLEMS)

Revision = Annotated[
    str,
    Query(
        pattern=REVISION_NAME,
        description="A commit, the beginning of one, COMMIT-DIFF for a dirty tree, a branch or a tag; "
        "`baseline`: of each scenario its own",
    ),
]


@router.get("/comparisons")
def compare_codes(
    known: KnownOf,
    base: Revision,
    head: Revision,
    scenario: Annotated[str | None, Query(max_length=64)] = None,
) -> ComparisonShape:
    """The same numbers as `phoenix compare BASE HEAD`. Only `phoenix compare --ab` measures anew."""
    return ComparisonShape.model_validate(compared(known, base, head, scenario).to_json())


def compared(known: Known, base: str, head: str, scenario: str | None) -> Comparison:
    """Raises Problem 404 for a code without trials."""
    try:
        return known.compare(base, head, scenario=scenario)
    except NoSamples as error:
        raise Problem(404, "not-found", str(error)) from None
