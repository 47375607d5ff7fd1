"""Small hyper-parameter sweep: rank 0 deals out trials to the other ranks."""
import argparse
import logging

import torch.distributed as dist

from pool import coordinator, worker
from tasks import build_records


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--trials", type=int, default=12)
    ap.add_argument("--log-level", default="INFO")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=args.log_level, format=f"[{rank}] %(levelname)s %(message)s")

    if rank == 0:
        results = coordinator(build_records(args.trials), list(range(1, dist.get_world_size())))
        results = [r for r in results if r is not None]
        best = min(results, key=lambda r: r["loss"])
        logging.info("best trial %s of %d", best, len(results))
    else:
        logging.info("ran %d trials", worker())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
