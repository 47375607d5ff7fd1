"""Real ranks for tests, from a fork server that has imported torch once for all of them."""

from jobs.fork_server import RankResult, run_ranks, values

__all__ = ["RankResult", "run_ranks", "values"]
