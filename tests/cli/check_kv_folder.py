"""`quire kv ls|stats|fsck|rm` on a healthy folder, a damaged one, one in use, and one that is no cache folder.

    tests/cli/check_kv_folder.py QUIRE WRITE_KV_FOLDER
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

quire, writer = sys.argv[1:3]


def run(*words, expect=0):
    done = subprocess.run([quire, "kv", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == expect, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr if expect else done.stdout


def records(folder):
    return [r["record"] for r in json.loads(run("ls", folder, "--json"))["records"]]


with tempfile.TemporaryDirectory() as top:
    folder = pathlib.Path(top) / "kv"
    subprocess.run([writer, folder, "200"], check=True)
    assert oct(folder.stat().st_mode)[-3:] == "700", folder.stat()
    assert all(oct(p.stat().st_mode)[-3:] == "600" for p in folder.rglob("*") if p.is_file())

    assert len(records(folder)) == 200
    stats = json.loads(run("stats", folder, "--json"))
    assert stats["records"] == 200 and stats["files"] >= 4 and stats["bytes"] > 200 * 20000, stats
    assert "200 records" in run("stats", folder)
    assert "all whole" in run("fsck", folder)

    # A bit in a record, a byte of the index, the manifest, and a file cut off: found once, then repaired.
    chance = random.Random(1)
    files = sorted((folder / "segments").iterdir())
    for path in [files[1], folder / "index.qidx", folder / "manifest.json"]:
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data) // 2)] ^= 4
        path.write_bytes(data)
        said = run("fsck", folder, expect=1)
        assert path.name in said, (path, said)
        assert "all whole" in run("fsck", folder)
    assert len(records(folder)) == 199
    last = sorted((folder / "segments").iterdir())[-1]
    with last.open("r+b") as f:
        f.truncate(last.stat().st_size - 5000)
    assert json.loads(run("fsck", folder, "--json", expect=1))["problems"]
    run("fsck", folder)
    (folder / "index.qidx").unlink()  # behind is not damaged
    run("fsck", folder)

    left = records(folder)
    run("rm", folder, left[0], left[1][:12])
    assert records(folder) == left[2:]
    run("fsck", folder)
    assert "0 records begin" in run("rm", folder, "zzzz", expect=1)
    run("rm", folder, expect=2)
    run("rm", folder, "--all")
    assert records(folder) == [] and not list((folder / "segments").iterdir())
    run("fsck", folder)

    # In use: looking is allowed, changing is not.
    holder = subprocess.Popen([writer, folder, "3", "60"], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "holding\n"
        assert len(records(folder)) == 3
        assert "another process" in run("fsck", folder, expect=2)
    finally:
        holder.kill()
        holder.wait()
    run("fsck", folder)  # after kill -9
    assert len(records(folder)) == 3

    # Not cache folders.
    run("ls", pathlib.Path(top) / "nothing", expect=3)
    run("ls", top, expect=3)
    run("fsck", top, expect=2)
print("quire kv ls, stats, fsck, rm do what they say")
