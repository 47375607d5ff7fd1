import torch.distributed as dist

PLACES = {
    "user_table": (0, 1),
    "item_table": (1, 2),
    "context_table": (0, 2),
    "tower": (0, 1, 2),
    "metrics": (0, 1),
    "audit": (0, 2),
}


def used_by(plan):
    """Names of the parts that appear in a plan, without repetition."""
    return {name for step in plan for name in step["parts"]}


def open_groups(plan):
    groups = {}
    for name in used_by(plan):
        groups[name] = dist.new_group(list(PLACES[name]))
    return groups
