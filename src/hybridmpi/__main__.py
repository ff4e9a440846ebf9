"""`python -m hybridmpi`: the `hybridmpi` command by this very Python, which is how ranks are started."""

import sys

from hybridmpi.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
