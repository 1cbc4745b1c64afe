"""`python -m phoenix_core run ...`: the launcher without the rest of the project."""

import sys

from phoenix_core.launcher import main

if __name__ == "__main__":
    if sys.argv[1:2] != ["run"]:
        print("usage: python -m phoenix_core run [options] script [arguments]", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[2:]))
