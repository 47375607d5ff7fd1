import logging

import torch.distributed as dist

from tasks import run_trial

log = logging.getLogger(__name__)
STOP = "__stop__"


def send_obj(obj, dst):
    dist.send_object_list([obj], dst=dst)


def recv_obj(src):
    box = [None]
    dist.recv_object_list(box, src=src)
    return box[0]


def coordinator(lines, workers):
    """Hand out one trial per worker, then collect one result per worker."""
    results = []
    for start in range(0, len(lines), len(workers)):
        wave = lines[start:start + len(workers)]
        for w, line in zip(workers, wave):
            send_obj(line, w)
        for w, _ in zip(workers, wave):
            results.append(recv_obj(w))
        log.info("%d/%d trials done", len(results), len(lines))
    for w in workers:
        send_obj(STOP, w)
    return results


def worker(coord=0):
    n_ok = 0
    while True:
        job = recv_obj(coord)
        if job == STOP:
            return n_ok
        try:
            result = run_trial(job)
        except (ValueError, KeyError) as err:
            log.warning("trial failed, skipping it: %s", err)
            send_obj(None, coord)
            continue
        send_obj(result, coord)
        n_ok += 1
