"""`pip install .` in a new virtual environment, as a user runs it; then the notebook.

    check_install.py ROOT
"""
import os
import subprocess
import sys
import tempfile
import venv

ROOT = sys.argv[1]
SAYS = "import quire; print(quire.Engine().generate('The capital of France is', max_tokens=8, temperature=0))"


def run(*command, **more):
    return subprocess.run(command, check=True, text=True, **more)


with tempfile.TemporaryDirectory() as folder:
    clone = os.path.join(folder, "quire")
    run("git", "clone", "--quiet", ROOT, clone)
    venv.create(folder + "/env", with_pip=True)
    python = folder + "/env/bin/python"
    run(python, "-m", "pip", "install", "--quiet", ".", cwd=clone)
    said = run(python, "-c", SAYS, capture_output=True, cwd=folder).stdout
    assert "Paris" in said, said
    version = run(folder + "/env/bin/quire", "--version", capture_output=True, cwd=folder).stdout
    assert version.startswith("quire"), version
    run(python, "-m", "pip", "install", "--quiet", "nbclient", "nbformat", "ipykernel", "matplotlib", "pandas")
    run(python, "-m", "jupyter", "execute", os.path.join(clone, "examples", "python", "cache.ipynb"), cwd=folder)
    print("installed, answered, and the notebook ran")
