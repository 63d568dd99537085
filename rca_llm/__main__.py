"""`python -m rca_llm`: the command line."""

from __future__ import annotations

import sys

from rca_llm.cli import main

sys.exit(main())
