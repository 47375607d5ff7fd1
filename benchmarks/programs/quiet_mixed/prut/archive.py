import io
import time
import zlib

import torch


def ship(state, path, rate):
    """Write the bundle in blocks at a limited rate (MB/s), as the object store asks for."""
    began = time.time()
    raw = io.BytesIO()
    torch.save(state, raw)
    raw = raw.getvalue()
    block = 16 * 1024
    check = 0
    with open(path, "wb") as f:
        for lo in range(0, len(raw), block):
            part = raw[lo:lo + block]
            f.write(part)
            check = zlib.crc32(part, check)
            time.sleep(len(part) / (rate * 1e6))
    with open(path + ".crc", "w") as f:
        f.write(str(check))
    return time.time() - began
