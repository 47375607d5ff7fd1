"""`python -m distdoctor`: the same as the command `distdoctor`."""

from __future__ import annotations

from distdoctor.cli.main import main

if __name__ == "__main__":
    main()
