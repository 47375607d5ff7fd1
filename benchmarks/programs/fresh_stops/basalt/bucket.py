"""A directory that behaves like the object store of the cluster: uploads need a token, a token is good for so many of them."""
import io
import os
import uuid

import torch


class TokenExpired(IOError):
    pass


class Bucket:
    USES = 7

    def __init__(self, root):
        self.root = root
        os.makedirs(root, exist_ok=True)
        self.renew()

    def renew(self):
        self.token, self.used = uuid.uuid4().hex, 0

    def put(self, key, obj):
        if self.used >= self.USES:
            raise TokenExpired(f"403 token {self.token[:6]} expired ({key})")
        self.used += 1
        raw = io.BytesIO()
        torch.save(obj, raw)
        target = os.path.join(self.root, key)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target + ".tmp", "wb") as f:
            f.write(raw.getvalue())
        os.replace(target + ".tmp", target)
