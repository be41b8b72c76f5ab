"""A cache folder under a process that is killed at every system call that writes, and under a server whose system calls fail:
`strace` injects the faults. What the next start finds is whole or absent, and no request fails.

    check_faults.py QUIRE WRITE_TINY WRITE_KV_FOLDER [--long]
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from check_stores import ask, words
from kv_testing import QUIRE, tiny
from serving import Server

WRITE_KV_FOLDER = sys.argv[3]
LONG = "--long" in sys.argv
RECORDS = 200 if LONG else 40
WRITES = "pwrite64,pwritev,write,ftruncate,fallocate,rename,renameat,unlink,unlinkat,mkdir,fdatasync,fsync"
NO_RING = ["-e", "inject=io_uring_setup:error=ENOSYS"]  # what a ring writes no tracer sees


def traces():
    """Whether processes may be traced here."""
    return shutil.which("strace") and subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode == 0


def fsck(folder):
    done = subprocess.run([QUIRE, "kv", "fsck", folder], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode


def records(folder):
    done = subprocess.run([QUIRE, "kv", "stats", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(re.search(r"([\d,]+) records?", done.stdout).group(1).replace(",", ""))


@unittest.skipUnless(traces(), "strace is not installed, or may not trace")
class Faults(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.TemporaryDirectory()
        self.folder = self.top.name + "/kv"

    def tearDown(self):
        self.top.cleanup()

    def strace(self, *inject):
        return subprocess.run(["strace", "-f", "-qq", "-o", self.top.name + "/calls", "-e", f"trace={WRITES},io_uring_setup", *NO_RING,
                               *inject, WRITE_KV_FOLDER, self.folder, str(RECORDS)], capture_output=True, text=True)

    def calls(self):
        """How often each call is made by a run that nobody disturbs."""
        self.assertEqual(self.strace().returncode, 0)
        shutil.rmtree(self.folder)
        made = re.findall(r"^\d+ +(\w+)\(", pathlib.Path(self.top.name, "calls").read_text(), re.M)
        return {name: made.count(name) for name in set(made) if name != "io_uring_setup"}

    def test_killed_at_every_call_that_writes(self):
        counts = self.calls()
        self.assertGreater(sum(counts.values()), 40, counts)
        # Calls are counted in each thread: the first that makes its n-th call is where the process dies.
        reached = 0
        for name, n in [(name, n) for name, count in counts.items() for n in range(1, count + 1)]:
            with self.subTest(f"{name} {n}"):
                done = self.strace("-e", f"inject={name}:signal=KILL:when={n}")
                if done.returncode == 0:  # no thread makes so many
                    shutil.rmtree(self.folder)
                    continue
                reached += 1
                # The next process opens the folder, writes what is missing, and finds nothing wrong.
                again = subprocess.run([WRITE_KV_FOLDER, self.folder, str(RECORDS)], capture_output=True, text=True)
                self.assertEqual(again.returncode, 0, again.stderr)
                fsck(self.folder)
                self.assertEqual(fsck(self.folder), 0)
                # A record whose head was written and whose end was not was taken for whole by the writer; fsck removed it.
                self.assertGreaterEqual(records(self.folder), RECORDS - 8)
                shutil.rmtree(self.folder)
        self.assertGreater(reached, 12)

    def test_a_server_whose_disk_says_no(self):
        with Server(QUIRE, tiny("llama-F32")) as alone:
            wanted = [ask(alone, words(800 + i, 60))[0] for i in range(8)]
        faults = ["pwrite64:error=ENOSPC:when=3+", "pwrite64:error=EIO:when=4+2", "pwrite64:error=EINTR:when=2+3",
                  "pwrite64:retval=4096:when=2+2", "pread64:error=EIO:when=1+2", "pread64:error=EINTR:when=1+2",
                  "pread64:retval=512:when=1+2", "fdatasync:error=EIO", "rename:error=EROFS", "openat:error=EMFILE:when=60+7"]
        for fault in faults if LONG else faults[::2]:
            with self.subTest(fault):
                for round_ in range(2):
                    command = pathlib.Path(self.top.name, "traced")
                    only = " ".join(f"-P {self.folder}/segments/{n:08d}.qseg" for n in (1, 2, 3)) if "pread" in fault else ""
                    command.write_text(f"#!/bin/sh\nexec strace -D -f -qq -o /dev/null -e trace={fault.split(':')[0]},io_uring_setup "
                                       f"{' '.join(NO_RING)} -e inject={fault} {only} {QUIRE} \"$@\"\n")
                    command.chmod(0o700)
                    with Server(str(command) if round_ else QUIRE, tiny("llama-F32"), "--kv-dir", self.folder, "--kv-disk",
                                "64MiB") as server:
                        for i in range(8):
                            self.assertEqual(ask(server, words(800 + i, 60))[0], wanted[i], fault)
                        for i in range(3):  # new ones are written, or not
                            ask(server, words(900 + i, 60))
                fsck(self.folder)
                self.assertEqual(fsck(self.folder), 0)
                shutil.rmtree(self.folder)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
