"""The toy is a stranger's project, with a suite of its own that needs it installed."""

collect_ignore = ["toy"]
