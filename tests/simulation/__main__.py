"""`python -m tests.simulation SEED` tells the story of one job; `... FIRST COUNT` runs many and says what broke."""

from __future__ import annotations

import sys
import time

from tests.simulation.faults import plan_of
from tests.simulation.run import simulate, sweep


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2) or not all(argument.isdigit() for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    if len(arguments) == 1:
        print(plan_of(int(arguments[0])))
        result = simulate(int(arguments[0]), print)
        print(result)
        return bool(result.violation)
    first, count = map(int, arguments)
    began = time.process_time()
    total = sweep(range(first, first + count))
    print(f"{total}\n{count / (time.process_time() - began):.0f} seeds a second of processor time")
    for violation in total.violations:
        print(violation)
    return bool(total.violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
