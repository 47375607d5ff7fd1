import random
from dataclasses import dataclass
from typing import List


@dataclass
class Page:
    site: int
    features: List[float]
    label: float
    quality: float


class PageSet:
    """Web pages of several sites; sites differ in how good their pages are."""

    def __init__(self, n, sites, seed, dim=24):
        rng = random.Random(seed)
        rule = [rng.gauss(0, 1) for _ in range(dim)]
        ceiling = [0.55 + 0.4 * ((s * 5) % 3 != 2) * (0.7 + 0.3 * rng.random()) for s in range(sites)]
        self.sites = sites
        self.pages = []
        for i in range(n):
            site = i % sites
            f = [rng.gauss(0, 1) for _ in range(dim)]
            y = 1.0 if sum(a * b for a, b in zip(f, rule)) + rng.gauss(0, 1) > 0 else 0.0
            self.pages.append(Page(site, f, y, round(rng.random() * ceiling[site], 4)))

    def of_sites(self, rank, world):
        share = len(self.pages) // world
        return self.pages[rank * share:(rank + 1) * share]
