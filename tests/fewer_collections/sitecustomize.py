"""Python looks through all objects again and again while torch is imported, and once more when the interpreter ends: a
quarter of the CPU time of a rank of a test, of which there are a thousand. Here torch's modules are set aside instead, and
nothing is looked through while more of them are imported.

Nothing else changes: a job's own objects are collected as always."""

import gc
import sys
from importlib.machinery import ModuleSpec, PathFinder

LARGE = ("torch", "torch._dynamo")


class SetAside:
    """A finder that leaves the import of large packages to Python, without collections meanwhile."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in LARGE:
            return None
        spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        if spec is None or spec.loader is None:
            return None
        plain = spec.loader.exec_module

        def without_collections(module: object) -> None:
            collects = gc.isenabled()
            gc.disable()
            try:
                plain(module)  # type: ignore[arg-type]
            finally:
                if name == "torch":  # later there are objects of the program, a process group for one, that are to go
                    gc.freeze()
                if collects:
                    gc.enable()

        spec.loader.exec_module = without_collections  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, SetAside)  # type: ignore[arg-type]
