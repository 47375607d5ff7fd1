"""V-shaped placement: the chain of stages runs down the ranks and back up again, so rank 0 owns both ends."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Op:
    kind: str  # "F" or "B"
    stage: int
    micro: int


def placement(world):
    down = list(range(world))
    return down + down[-2::-1]


def plan(world, micros, in_flight):
    """List of operations for every rank; greedy simulation which prefers backward work."""
    owner = placement(world)
    stages = len(owner)
    todo = {("F", s, m) for s in range(stages) for m in range(micros)} | {("B", s, m) for s in range(stages) for m in range(micros)}
    done, out = set(), [[] for _ in range(world)]

    def ready(op):
        kind, s, m = op
        if kind == "F":
            if s == 0:
                live = sum(1 for k in range(m) if ("B", 0, k) not in done)
                return live < in_flight and (m == 0 or ("F", 0, m - 1) in done)
            return ("F", s - 1, m) in done
        return ("F", s, m) in done if s == stages - 1 else ("B", s + 1, m) in done

    while todo:
        tick = []
        for rank in range(world):
            mine = [op for op in todo if owner[op[1]] == rank and ready(op)]
            if mine:
                tick.append((rank, min(mine, key=lambda op: (op[0] != "B", -op[1], op[2]))))
        if not tick:
            raise RuntimeError("no operation is ready")
        for rank, op in tick:
            todo.discard(op)
            done.add(op)
            out[rank].append(Op(*op))
    return out
