import ast
import copy
import sys

DEFAULTS = {
    "data": {"train_rows": 1440, "val_rows": 1440, "size": 20, "seed": 1},
    "model": {"width": 16, "classes": 5},
    "optim": {"name": "adamw", "lr": 0.004, "weight_decay": 0.02},
    "loop": {"epochs": 2, "batch": 24, "eval_every": 8, "eval_batch": 120, "clip": 1.0},
    "seed": 10,
}


class Node(dict):
    __getattr__ = dict.__getitem__

    @classmethod
    def wrap(cls, value):
        return cls({k: cls.wrap(v) for k, v in value.items()}) if isinstance(value, dict) else value


def compose(argv=None):
    tree = copy.deepcopy(DEFAULTS)
    for item in sys.argv[1:] if argv is None else argv:
        path, _, raw = item.partition("=")
        *parents, leaf = path.split(".")
        node = tree
        for p in parents:
            node = node[p]
        if leaf not in node:
            raise SystemExit(f"unknown option {path}")
        try:
            node[leaf] = ast.literal_eval(raw)
        except (ValueError, SyntaxError):
            node[leaf] = raw
    return Node.wrap(tree)
