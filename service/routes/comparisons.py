"""Two codes compared, from the trials that the service knows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from chaos.git import REVISION
from chaos.revisions import NoSamples
from service.comparison_shapes import ComparisonShape
from service.problems import Problem
from service.routes.common import PROBLEMS
from service.routes.history import KnownOf

router = APIRouter(tags=["comparisons"], responses=PROBLEMS)

Revision = Annotated[
    str,
    Query(
        pattern=f"^{REVISION.pattern}$",
        description="A commit, the beginning of one, COMMIT-DIFF for a dirty tree, a branch or a tag",
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
    try:
        found = known.compare(base, head, scenario=scenario)
    except NoSamples as error:
        raise Problem(404, "not-found", str(error)) from None
    return ComparisonShape.model_validate(found.to_json())
