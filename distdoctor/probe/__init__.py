"""Lives inside the rank: records what happened, never judges, never raises."""
