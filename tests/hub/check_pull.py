"""`quire pull`, `ls` and `rm`, and commands that are given hf:OWNER/REPO, against a small hub on this machine.

    scripts/python tests/hub/check_pull.py QUIRE WRITE_TINY

The hub is also asked by huggingface_hub, and its cache folder is read by it: so the hub is like the real one, and what
Quire fetches the others find.
"""
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cli"))
from hf_folder import write_hf_folder  # noqa: E402
from small_hub import COMMIT, Hub  # noqa: E402

QUIRE, WRITE_TINY = map(os.path.abspath, sys.argv[1:3])
HURRY = 120
scratch = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, scratch.name], check=True)
TINY = pathlib.Path(f"{scratch.name}/llama-F32.gguf").read_bytes()
FOLDER = {p.name: p.read_bytes() for p in write_hf_folder(pathlib.Path(scratch.name) / "hf").iterdir()}
LARGE = random.Random(1).randbytes(40 << 20)  # three pieces


class Case(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.hub = Hub({
            "acme/tiny": dict(FOLDER) | {"README.md": b"# Tiny\n"},
            "acme/tiny-GGUF": {"tiny-Q8_0.gguf": TINY + b"\0", "tiny-Q4_K_M.gguf": TINY, "mmproj-Q4_K_M.gguf": b"x" * 5000},
            "acme/large": {"large.gguf": LARGE}})
        self.addCleanup(self.hub.__exit__)

    def quire(self, *arguments, code=0, **environment):
        done = subprocess.run([QUIRE, *map(str, arguments)], capture_output=True, text=True, timeout=HURRY, stdin=subprocess.DEVNULL,
                              env=self.environment(**environment))
        self.assertEqual(done.returncode, code, f"quire {arguments}: {done.stdout}{done.stderr}")
        return done

    def environment(self, **more):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        return {**clean, "XDG_CACHE_HOME": self.home.name, "HF_ENDPOINT": self.hub.url, "NO_COLOR": "1", **more}

    def fails(self, *arguments, says, code=1, **environment):
        done = self.quire(*arguments, code=code, **environment)
        self.assertIn("error: ", done.stderr)
        for words in [says] if isinstance(says, str) else says:
            self.assertIn(words, done.stderr)
        return done

    def repo(self, name):
        return pathlib.Path(self.home.name) / "huggingface/hub" / ("models--" + name.replace("/", "--"))

    def blobs(self, name):
        folder = self.repo(name) / "blobs"
        return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


class Pull(Case):
    def test_a_folder_of_safetensors_and_what_belongs_to_it(self):
        pulled = json.loads(self.quire("pull", "hf:acme/tiny", "--json").stdout)
        self.assertEqual(pathlib.Path(pulled["path"]), self.repo("acme/tiny") / "snapshots" / COMMIT)
        for name, data in FOLDER.items():
            self.assertEqual((pathlib.Path(pulled["path"]) / name).read_bytes(), data)
        self.assertNotIn("README.md", pulled["files"])
        self.assertEqual((self.repo("acme/tiny") / "refs/main").read_text(), COMMIT)
        self.assertEqual(self.quire("show", "acme/tiny").returncode, 0)

    def test_of_gguf_files_one_is_chosen(self):
        done = self.quire("pull", "acme/tiny-GGUF")
        self.assertTrue(done.stdout.endswith("/tiny-Q4_K_M.gguf\n"), done.stdout)
        self.assertIn("of 2 GGUF files tiny-Q4_K_M.gguf was chosen", done.stderr)
        self.assertTrue(self.quire("pull", "hf:acme/tiny-GGUF:q8_0").stdout.endswith("/tiny-Q8_0.gguf\n"))
        self.assertTrue(self.quire("pull", "hf:acme/tiny-GGUF:tiny-Q8_0.gguf").stdout.endswith("/tiny-Q8_0.gguf\n"))
        self.fails("pull", "hf:acme/tiny-GGUF:Q5_K_M", says=["no GGUF file named like 'Q5_K_M'", "tiny-Q8_0.gguf"], code=3)

    def test_what_is_there_is_not_fetched_again(self):
        self.quire("pull", "acme/tiny")
        before = len(self.hub.asked_elsewhere)
        self.quire("pull", "acme/tiny")
        self.assertEqual(len(self.hub.asked_elsewhere), before)

    def test_a_large_file_comes_in_parts_at_once(self):
        path = self.quire("pull", "acme/large").stdout.strip()
        self.assertEqual(pathlib.Path(path).read_bytes(), LARGE)
        ranges = {h["Range"] for _, _, h in self.hub.asked_elsewhere}
        self.assertEqual(ranges, {f"bytes={a << 20}-{min(a + 16 << 20, len(LARGE)) - 1}" for a in (0, 16, 32)})

    def test_a_name_that_moved(self):
        self.hub.faults["renamed"] = {"old/name": "acme/tiny"}
        self.quire("pull", "old/name")
        self.assertTrue((self.repo("old/name") / "refs/main").exists())

    def test_listings_without_sizes(self):
        self.hub.faults["plain"] = True
        path = self.quire("pull", "acme/tiny").stdout.strip()
        self.assertEqual((pathlib.Path(path) / "model.safetensors").read_bytes(), FOLDER["model.safetensors"])

    def test_parts_of_a_model(self):
        parts = {f"big-Q4_K_M-0000{i}-of-00003.gguf": os.urandom(5000) for i in (1, 2, 3)}
        self.hub.repos["acme/parts"] = parts
        pulled = json.loads(self.quire("pull", "acme/parts", "--json").stdout)
        self.assertEqual(sorted(pulled["files"]), sorted(parts))
        self.assertTrue(pulled["path"].endswith("-00001-of-00003.gguf"))
        del parts["big-Q4_K_M-00002-of-00003.gguf"]
        self.fails("pull", "acme/parts", says="only 2 of 3 parts", code=3)

    def test_names_that_name_nothing(self):
        self.fails("pull", "hf:acme/none", says=["has no hf:acme/none", "Repository not found"], code=3)
        for name in ("hf:acme", "hf:../x", "hf:acme/..", "hf:a/b:../../etc/passwd", "hf:a/b/c", "hf:a b/c"):
            self.fails("pull", name, says="does not name a model of a hub", code=2)
        self.fails("pull", "acme/tiny", says="HF_HUB_OFFLINE", HF_HUB_OFFLINE="1")
        self.fails("pull", "acme/tiny", says="HF_ENDPOINT", HF_ENDPOINT="ftp://x", code=2)
        self.hub.repos["acme/empty"] = {"README.md": b"nothing"}
        self.fails("pull", "acme/empty", says="neither a GGUF file nor safetensors", code=3)


class Trouble(Case):
    def test_a_dropped_connection_goes_on_where_it_was(self):
        self.hub.faults["cuts"] = [3 << 20, 5 << 20, 1 << 20]
        done = self.quire("pull", "acme/large")
        self.assertEqual(pathlib.Path(done.stdout.strip()).read_bytes(), LARGE)
        starts = sorted(int(re.match(r"bytes=(\d+)", h["Range"]).group(1)) for _, _, h in self.hub.asked_elsewhere)
        self.assertEqual(len(starts), 6)
        self.assertEqual(sum(s % (16 << 20) != 0 for s in starts), 3)  # from the byte where each was cut
        self.assertEqual(self.blobs("acme/large"), [pathlib.Path(os.readlink(done.stdout.strip())).name])

    def test_a_killed_pull_goes_on_where_it_was(self):
        self.hub.faults["cuts"] = [9 << 20] * 3
        self.hub.faults["elsewhere_statuses"] = []
        process = subprocess.Popen([QUIRE, "pull", "acme/large", "--connections", "1"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=self.environment())
        while len(self.hub.asked_elsewhere) < 1:
            time.sleep(0.01)
        self.hub.faults["elsewhere_statuses"] = [(503, [("Retry-After", "100")])] * 9  # it waits, and is killed
        while len(self.hub.asked_elsewhere) < 2:
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.hub.faults.clear()
        self.hub.asked_elsewhere.clear()
        done = self.quire("pull", "acme/large")
        self.assertEqual(pathlib.Path(done.stdout.strip()).read_bytes(), LARGE)
        starts = sorted(int(re.match(r"bytes=(\d+)", h["Range"]).group(1)) for _, _, h in self.hub.asked_elsewhere)
        self.assertGreaterEqual(starts[0] >> 20, 8)  # not from the beginning: how far it is, is noted every MiB

    def test_429_is_waited_for(self):
        self.hub.faults["statuses"] = [(429, [("Retry-After", "1")]), (503, [])]
        began = time.time()
        done = self.quire("pull", "acme/tiny")
        self.assertGreater(time.time() - began, 1)
        self.assertIn("answers 429; trying again in 1 s", done.stderr)
        self.hub.faults["statuses"] = [(429, [("Retry-After", "3600")])]
        self.fails("pull", "acme/tiny-GGUF", says=["answers 429", "3600 s"])

    def test_tokens(self):
        self.hub.faults["token"] = "hf_secret"
        self.fails("pull", "acme/tiny", says=["without a token", "HF_TOKEN"])
        self.fails("pull", "acme/tiny", says="does not take this token", HF_TOKEN="hf_other")
        self.fails("pull", "acme/tiny", says="HF_TOKEN", HF_TOKEN="a b", code=2)
        self.quire("pull", "acme/tiny", HF_TOKEN="hf_secret")
        token = pathlib.Path(self.home.name) / "huggingface/token"
        token.write_text("hf_secret\n")
        self.quire("pull", "acme/tiny-GGUF")
        self.assertTrue(any(h.get("Authorization") == "Bearer hf_secret" for _, _, h in self.hub.asked))
        self.assertGreater(len(self.hub.asked_elsewhere), 0)
        for _, _, headers in self.hub.asked_elsewhere:  # another server: the token must not follow
            self.assertNotIn("Authorization", headers)

    def test_wrong_bytes_are_refused_and_removed(self):
        self.hub.faults["flip"] = True
        self.fails("pull", "acme/large", says=["its digest is", "removed"], code=3)
        self.assertEqual(self.blobs("acme/large"), [])
        self.assertFalse((self.repo("acme/large") / "refs/main").exists())
        self.hub.faults.clear()
        self.quire("pull", "acme/large")

    def test_hostile_names(self):
        for name in ("../evil.gguf", "a/../../evil.gguf", "/etc/evil.gguf", "a//b.gguf", "a\\b.gguf", "x\n.gguf", "x" * 300 + ".gguf"):
            self.hub.faults["siblings"] = [{"rfilename": name, "size": 5, "blobId": "0" * 40}]
            self.fails("pull", "acme/tiny", says="would not lie in its folder", code=3)
        self.hub.faults.clear()
        for entry in ({"lfs": {"sha256": "../../../evil", "size": 5}}, {"lfs": {"sha256": "zz", "size": 5}}):
            self.hub.faults["entry"] = {"model.safetensors": entry}
            self.fails("pull", "acme/tiny", says="a digest that is none", code=3)
        self.hub.faults = {"sha": "../../x"}
        self.fails("pull", "acme/tiny", says="names no commit", code=3)
        self.assertFalse(self.repo("acme/tiny").exists())

    def test_a_hub_that_lies_about_sizes(self):
        for faults, says in (({"extra": 10}, "sends more than"), ({"total": 7}, "and sends 'bytes"),
                             ({"missing": 10}, "sends fewer than"), ({"linked_size": 12}, "and sends 12"),
                             ({"entry": {"large.gguf": {"lfs": {"sha256": "0" * 64, "size": 1 << 60}, "size": 1 << 60}}}, "1152921504606846976"),
                             ({"entry": {"large.gguf": {"lfs": {"sha256": "0" * 64, "size": 1 << 43}, "size": 1 << 43}}}, "are free"),
                             ({"entry": {"large.gguf": {"size": 3}}}, "two sizes")):
            self.hub.faults = faults
            done = self.fails("pull", "acme/large", says=says, code=4 if says == "are free" else 3)
            self.assertNotIn("aborted", done.stderr)
            for blob in (self.repo("acme/large") / "blobs").glob("*"):  # nothing takes the room of the lie
                self.assertLess(blob.stat().st_blocks * 512, 50 << 20)

    def test_a_hub_that_knows_no_ranges(self):
        self.hub.faults["no_ranges"] = True
        path = self.quire("pull", "acme/large").stdout.strip()
        self.assertEqual(pathlib.Path(path).read_bytes(), LARGE)

    def test_tls(self):
        certificate = f"{self.home.name}/hub.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                        "/CN=hub", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", certificate, "-out", certificate + ".crt"],
                       check=True, capture_output=True)
        with open(certificate, "a") as both:
            both.write(pathlib.Path(certificate + ".crt").read_text())
        with Hub(self.hub.repos, certificate) as hub:
            path = self.quire("pull", "acme/large", HF_ENDPOINT=hub.url, SSL_CERT_FILE=certificate + ".crt").stdout.strip()
            self.assertEqual(pathlib.Path(path).read_bytes(), LARGE)
            self.fails("pull", "acme/tiny", says="certificate", HF_ENDPOINT=hub.url)  # nobody trusts it
            hub.elsewhere = self.hub.elsewhere  # from TLS to where there is none
            self.fails("pull", "acme/tiny", says="is not encrypted", HF_ENDPOINT=hub.url, SSL_CERT_FILE=certificate + ".crt")

    def test_nobody_is_there(self):
        self.fails("pull", "acme/tiny", says="gave up after 5 tries", HF_ENDPOINT="http://127.0.0.1:1")

    def test_two_at_once(self):
        def start():
            return subprocess.Popen([QUIRE, "pull", "acme/large"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment())
        pulls = [start(), start()]
        for p in pulls:
            out, err = p.communicate(timeout=HURRY)
            self.assertEqual(p.returncode, 0, err)
            self.assertEqual(pathlib.Path(out.decode().strip()).read_bytes(), LARGE)
        self.assertEqual(len(self.blobs("acme/large")), 1)


class Folder(Case):
    def test_ls_and_rm(self):
        self.assertIn("no models in", self.quire("ls").stderr)
        self.quire("pull", "acme/tiny")
        self.quire("pull", "acme/tiny-GGUF")
        self.quire("pull", "acme/tiny-GGUF:Q8_0")
        names = ["hf:acme/tiny", "hf:acme/tiny-GGUF:tiny-Q4_K_M.gguf", "hf:acme/tiny-GGUF:tiny-Q8_0.gguf"]
        listed = json.loads(self.quire("list", "--json").stdout)["models"]
        self.assertEqual([m["name"] for m in listed], names)
        self.assertEqual(listed[1]["bytes"], len(TINY))
        for name in names:
            self.assertIn(name, self.quire("ls").stdout)
            self.quire("show", name)
        self.quire("rm", names[2])
        self.assertEqual([m["name"] for m in json.loads(self.quire("ls", "--json").stdout)["models"]],
                         ["hf:acme/tiny", "hf:acme/tiny-GGUF"])
        self.assertEqual(len(self.blobs("acme/tiny-GGUF")), 1)
        self.fails("show", names[2], says=["is not in", "quire pull"], code=3)
        self.quire("rm", "hf:acme/tiny")
        self.assertFalse(self.repo("acme/tiny").exists())
        self.fails("rm", "hf:acme/tiny", says="quire ls", code=3)
        kept = pathlib.Path(self.home.name) / "kept.gguf"
        kept.write_bytes(TINY)
        self.fails("rm", str(kept), says="no model is named", code=3)
        self.assertTrue(kept.exists())

    def test_ours_by_name(self):
        models = pathlib.Path(self.home.name) / "quire/models"
        models.mkdir(parents=True)
        (models / "mine.gguf").write_bytes(TINY)
        self.assertIn("mine", self.quire("ls").stdout)
        self.quire("rm", "mine")
        self.assertEqual(list(models.iterdir()), [])

    def test_serve_and_run_fetch(self):
        done = self.quire("run", "hf:acme/tiny", "hi", "-n", "2", "--raw")
        self.assertTrue((self.repo("acme/tiny") / "refs/main").exists(), done.stderr)
        self.hub.__exit__()  # from here on nothing is asked
        self.quire("run", "hf:acme/tiny", "hi", "-n", "2", "--raw")
        with open(f"{self.home.name}/log", "w+") as log:
            server = subprocess.Popen([QUIRE, "serve", "hf:acme/tiny", "--port", "0"], stderr=log, env=self.environment())
            end = time.time() + HURRY
            said = pathlib.Path(log.name)
            while not (ready := re.search(r"127\.0\.0\.1:(\d+) model=tiny ", said.read_text())):
                self.assertTrue(server.poll() is None and time.time() < end, said.read_text())
                time.sleep(0.05)
            connection = http.client.HTTPConnection("127.0.0.1", int(ready.group(1)))
            connection.request("GET", "/v1/models")
            self.assertEqual(json.loads(connection.getresponse().read())["data"][0]["id"], "tiny")
            connection.close()
            server.terminate()
            server.wait(HURRY)

    def test_others_find_it_and_it_finds_theirs(self):
        try:
            import huggingface_hub  # noqa: F401
        except ImportError:
            self.skipTest("without huggingface_hub")
        script = "import sys, huggingface_hub as h; print(h.snapshot_download('acme/tiny', local_files_only=sys.argv[1] == 'local'))"

        def theirs(how):
            with contextlib.suppress(KeyError):
                os.environ.pop("HF_HUB_OFFLINE")
            return subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, timeout=HURRY,
                                  env=self.environment(HF_HOME=f"{self.home.name}/huggingface", HF_HUB_DISABLE_XET="1"))
        self.quire("pull", "acme/tiny")
        found = theirs("local")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertEqual(pathlib.Path(found.stdout.strip()), self.repo("acme/tiny") / "snapshots" / COMMIT)
        self.quire("rm", "hf:acme/tiny")
        fetched = theirs("remote")  # from the same hub, so it is like the real one
        self.assertEqual(fetched.returncode, 0, fetched.stderr)
        before = len(self.hub.asked)
        self.quire("show", "hf:acme/tiny")
        self.quire("pull", "hf:acme/tiny")
        self.assertEqual(len(self.hub.asked), before + 1)  # the listing


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
