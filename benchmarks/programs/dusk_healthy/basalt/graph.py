"""Communication topologies for gossip averaging."""
import math


class DirectedExponentialGraph:
    """Rank r sends to r + 2^k (mod n), k cycles with the iteration; one out-peer and one in-peer at a time."""

    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.hops = [2 ** k for k in range(int(math.log2(world - 1)) + 1)] if world > 1 else []

    def peers(self, it):
        hop = self.hops[it % len(self.hops)]
        return (self.rank + hop) % self.world, (self.rank - hop) % self.world
