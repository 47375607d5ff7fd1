import argparse
import logging

import torch
import torch.distributed as dist

from jobs import execute, plan

READY, RESULT = 1, 2
TAG_REQ, TAG_JOB = 11, 12
log = logging.getLogger("farm")


def ask(kind, a=0.0, b=0.0):
    dist.send(torch.tensor([kind, a, b], dtype=torch.float64), 0, tag=TAG_REQ)


def dispatcher(jobs, world):
    queue, results, running = list(jobs), {}, {}
    active = world - 1
    msg = torch.empty(3, dtype=torch.float64)
    while active:
        src = dist.recv(msg, tag=TAG_REQ)
        if int(msg[0]) == RESULT:
            results[int(msg[1])] = float(msg[2])
            running.pop(src, None)
            log.info("job %d back from %d, still out: %s", int(msg[1]), src, running)
            continue
        if queue:
            job = queue.pop(0)
            running[src] = job[0]
            dist.send(torch.tensor(job), src, tag=TAG_JOB)
        else:
            dist.send(torch.tensor([-1, 0, 0]), src, tag=TAG_JOB)
            active -= 1
    return results


def labourer(heavy):
    done = 0
    while True:
        ask(READY)
        job = torch.empty(3, dtype=torch.long)
        dist.recv(job, 0, tag=TAG_JOB)
        if int(job[0]) < 0:
            return done
        jid, value = execute(tuple(job.tolist()), heavy)
        ask(RESULT, jid, value)
        done += 1


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--jobs", type=int, default=9)
    ap.add_argument("--heavy-seconds", type=float, default=13)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [{rank}] %(message)s")
    summary = [None]
    if rank == 0:
        results = dispatcher(plan(args.jobs), world)
        summary = [sorted(results.items())]
    else:
        log.info("did %d jobs", labourer(args.heavy_seconds))
    dist.broadcast_object_list(summary, src=0)
    assert len(summary[0]) == args.jobs
    log.info("all done: %d results", len(summary[0]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
