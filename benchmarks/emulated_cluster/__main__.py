"""`python benchmarks/emulated_cluster ...`: see command.py."""

import sys
from pathlib import Path

# Python puts this folder first on the path when it runs it; the package is found from the one above.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from emulated_cluster.command import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
