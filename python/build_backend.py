"""Builds the package with scikit-build-core, on a machine that may lack the Debian packages that Quire needs.

`pip install .` runs this. Where apt-get and the right to use it are there, scripts/setup installs what is missing;
elsewhere CMake says what it lacks.
"""
import shutil
import subprocess
from pathlib import Path

from scikit_build_core import build as _build

_ROOT = Path(__file__).parent.parent


def _prepare():
    if shutil.which("apt-get"):
        subprocess.run([_ROOT / "scripts" / "setup", "--python"], check=False)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _prepare()
    return _build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _prepare()
    return _build.build_editable(wheel_directory, config_settings, metadata_directory)


build_sdist = _build.build_sdist
get_requires_for_build_wheel = _build.get_requires_for_build_wheel
get_requires_for_build_editable = _build.get_requires_for_build_editable
get_requires_for_build_sdist = _build.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = _build.prepare_metadata_for_build_wheel
