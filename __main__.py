"""``python -m comap``: the command line."""

from .cli import main

raise SystemExit(main())
