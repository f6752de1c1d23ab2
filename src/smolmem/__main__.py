"""`python -m smolmem` is the command line, also where the folder of `smolmem` is not on the PATH."""

import sys

from smolmem.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
