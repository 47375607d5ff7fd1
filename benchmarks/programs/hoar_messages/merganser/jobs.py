import time

import torch


def plan(n):
    """(job id, matrix size, rounds); one of the jobs is a big one."""
    jobs = [(i, 64 + 8 * i, 3) for i in range(n)]
    jobs[2] = (2, 96, -1)
    return jobs


def execute(job, heavy_seconds):
    jid, size, rounds = job
    g = torch.Generator().manual_seed(jid)
    a = torch.randn(size, size, generator=g) / size ** 0.5
    if rounds < 0:
        end = time.time() + heavy_seconds
        while time.time() < end:
            a = torch.linalg.qr(a)[0]
            time.sleep(0.3)
    for _ in range(max(rounds, 1)):
        a = a @ a.T
        a = a / a.norm()
    return jid, float(a.trace())
