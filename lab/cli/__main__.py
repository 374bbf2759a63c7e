"""`python -m lab.cli` is `lab`."""

import sys

from lab.cli import main

sys.exit(main())
