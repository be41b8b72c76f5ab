"""The leaderboard of methods that make the cache smaller, as rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .models import default_model

__all__ = ["leaderboard", "main", "program"]


def program() -> str:
    """Path of the `quire` program that came with this package."""
    return str(Path(__file__).parent / "bin" / "quire")


def main() -> int:
    """`quire` on the command line of an environment."""
    os.execv(program(), ["quire", *sys.argv[1:]])


def leaderboard(model: str | os.PathLike[str] | None = None, *, tier: str = "smoke",
                methods: Sequence[str] | None = None, shares: Sequence[float] | None = None,
                text_file: str | os.PathLike[str] | None = None,
                out: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """Compares methods and formats on one model at equal bytes: one flat dict a row, so that
    `pandas.DataFrame(leaderboard())` is a table. With `out` results are kept there, and a second call asks
    only what is new."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program(), "leaderboard", "run", os.fspath(model) if model is not None else default_model(),
                   "--tier", tier, "--json", "--out", os.fspath(out) if out is not None else folder]
        if methods:
            command += ["--methods", ",".join(methods)]
        if shares:
            command += ["--shares", ",".join(map(str, shares))]
        if text_file is not None:
            command += ["--text-file", os.fspath(text_file)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return [_flat(row) for row in json.loads(done.stdout)["rows"]]


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
