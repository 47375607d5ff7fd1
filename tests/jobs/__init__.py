"""Real ranks for tests: the fork server that distdoctor's own pytest plugin uses."""

from distdoctor.launch.fork_server import RankResult, run_ranks, values

__all__ = ["RankResult", "run_ranks", "values"]
