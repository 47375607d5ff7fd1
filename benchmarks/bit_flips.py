"""How many flipped bits are found: one bit of one tensor on one rank, drawn at random over tensors, bits, steps and ranks.

    python benchmarks/bit_flips.py [--flips 1000] [--ranks 3] [--jobs 5] [--digests 1000] [--seed 0]

Real jobs: DistributedDataParallel over gloo, many small models side by side (float32, float64, bfloat16), an optimizer and one
planted flip in each: in a weight after a step, in a gradient before one, in Adam's memory after one. Right means step, rank and
parameter, and the bit where a bit can still be told. Digests alone: random tensors of every dtype, contiguous or not.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def real_jobs(flips: int, ranks: int, jobs: int, seed: int) -> int:
    """Print what was found by kind; how many were not right in everything."""
    from jobs import bit_flips as bit_flip_jobs

    began, found = time.perf_counter(), []
    share = -(-flips // jobs)
    for number in range(jobs):
        count = min(share, flips - number * share)
        if count > 0:
            found += bit_flip_jobs.plant(bit_flip_jobs.flips(count, ranks, seed + number), ranks)
    by_kind = defaultdict(list)
    for one in found:
        by_kind[one.flip.where, one.flip.dtype].append(one)
    print(f"real jobs: {len(found)} flips, {ranks} ranks, {time.perf_counter() - began:.0f} s")
    print(f"{'flipped in':12}{'dtype':10}{'flips':>6}{'seen':>6}{'step':>6}{'rank':>6}{'param':>6}{'bit':>10}  codes")
    for (where, dtype), group in [*sorted(by_kind.items()), (("all", ""), found)]:
        told = [one for one in group if one.bit is not None]
        counts = [sum(getattr(one, name) for one in group) for name in ("seen", "step", "rank", "parameter")]
        bits = f"{sum(bool(one.bit) for one in told)}/{len(told)}"
        codes = ", ".join(
            f"{code or 'none'} {count}" for code, count in Counter(one.code for one in group).most_common()
        )
        print(
            f"{where:12}{dtype:10}{len(group):6}" + "".join(f"{count:6}" for count in counts) + f"{bits:>10}  {codes}"
        )
    wrong = [one for one in found if not one.right]
    for one in wrong[:10]:
        print(f"  not right: {one}")
    return len(wrong)


def digests(count: int, seed: int) -> int:
    """Print how many single flips changed the digest of a tensor; how many did not."""
    import torch

    from distdoctor.probe.tensors.digests import digest
    from distdoctor.recording.trace.layout import DTYPES

    rng, missed, by_dtype = random.Random(seed), 0, Counter[str]()
    names = [name for name in DTYPES if name and hasattr(torch, name)]
    began = time.perf_counter()
    for _ in range(count):
        name = rng.choice(names)
        dtype = getattr(torch, name)
        width, size = torch.empty(0, dtype=dtype).element_size(), rng.choice((1, 7, 64, 1021, 8192, 100_003))
        generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
        raw = torch.randint(
            0, 2 if dtype is torch.bool else 256, (size * 2 * width,), generator=generator, dtype=torch.uint8
        )
        tensor = raw.view(dtype)
        step = rng.choice((1, 2))
        before = digest(tensor[::step])
        element = rng.randrange(len(tensor[::step])) * step
        raw[element * width + rng.randrange(width)] ^= 1 << (0 if dtype is torch.bool else rng.randrange(8))
        missed += digest(tensor[::step]) == before
        by_dtype[name] += 1
    print(
        f"digests alone: {count - missed} of {count} flips seen, {len(by_dtype)} dtypes, {time.perf_counter() - began:.1f} s"
    )
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--digests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    missed = digests(options.digests, options.seed)
    wrong = real_jobs(options.flips, options.ranks, options.jobs, options.seed)
    return int(bool(missed or wrong))


if __name__ == "__main__":
    sys.exit(main())
