"""`python -m tablepuppet` is the command `tablepuppet`."""

import sys

from tablepuppet.cli.main import main

sys.exit(main())
