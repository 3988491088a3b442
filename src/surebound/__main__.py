"""`python -m surebound`."""

import sys

from surebound.cli.main import main

sys.exit(main())
