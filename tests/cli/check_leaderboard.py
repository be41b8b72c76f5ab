"""`quire leaderboard`: the smoke tier on a real model. Rows make sense, a second run asks nothing again and says the
same, and rows of others are taken only for the same samples.

  check_leaderboard.py QUIRE MODEL TEXT
"""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

QUIRE, MODEL, TEXT = sys.argv[1:4]


def leaderboard(*arguments, ok=True):
    done = subprocess.run([QUIRE, "leaderboard", *arguments], capture_output=True, text=True, timeout=600)
    if ok and done.returncode != 0:
        raise AssertionError(done.stderr)
    return done


class Leaderboard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = os.path.join(cls.folder.name, "board")
        cls.run_it()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def run_it(cls):
        began = time.monotonic()
        leaderboard("run", MODEL, "--tier", "smoke", "--text-file", TEXT, "--out", cls.out)
        cls.seconds = time.monotonic() - began
        with open(os.path.join(cls.out, "results.json")) as file:
            cls.result = json.load(file)
        cls.rows = {(r["method"], r["share"]): r for r in cls.result["rows"]}

    def test_rows_have_bytes_and_scores(self):
        full = self.rows["full", 1]
        self.assertAlmostEqual(full["bytes_per_token"] / 23040, 1, delta=0.09)
        for (method, share), row in self.rows.items():
            self.assertEqual(row["track"], "aware" if method in ("snapkv", "oracle") else "blind")
            if method in ("full", "none"):
                continue
            kept = 0.29 if method == "hadamard-int4" else share
            self.assertLess(row["bytes_per_token"], 23040 * (kept + 0.13), method)
            self.assertGreater(row["bytes_per_token"], 23040 * (kept - 0.05), method)

    def test_what_must_hold_holds(self):
        score = lambda method, share, cell: self.rows[method, share]["scores"][cell]["score"]
        open_cells = [c["name"] for c in self.result["cells"] if c["gate"]]
        self.assertIn("S1 512", open_cells)
        # A text goes on best with its first and last tokens; what was said in the middle is gone.
        self.assertGreater(score("streaming", 0.5, "S1 512"), score("random", 0.5, "S1 512"))
        self.assertGreater(score("full", 1, "S1 512"), score("streaming", 0.19, "S1 512"))
        self.assertGreater(score("oracle", 0.5, "S3 32"), score("streaming", 0.5, "S3 32"))
        self.assertLess(self.rows["hadamard-int4", 1]["kl"], self.rows["random", 0.5]["kl"])
        self.assertEqual(self.rows["full", 1]["kl"], 0)

    def test_it_goes_on_where_it_was(self):
        before, first = self.result, self.seconds
        self.run_it()
        self.assertLess(self.seconds, first / 2)
        self.assertEqual(json.dumps(self.result), json.dumps(before))

    def test_pages_are_written(self):
        with open(os.path.join(self.out, "leaderboard.md")) as file:
            self.assertIn("hadamard-int4", file.read())
        with open(os.path.join(self.out, "leaderboard.html")) as file:
            self.assertIn("<svg", file.read())

    def add(self, other, ok=True):
        """Adds results that somebody else's program wrote, to a copy of ours; the folder and what was said."""
        out = tempfile.mkdtemp(dir=self.folder.name)
        path = os.path.join(out, "theirs.json")
        for name, content in (("results.json", self.result), ("theirs.json", other)):
            with open(os.path.join(out, name), "w") as file:
                file.write(content if isinstance(content, str) else json.dumps(content))
        return out, leaderboard("add", path, "--out", out, ok=ok)

    def theirs(self):
        row = {**self.rows["snapkv", 0.5], "method": "theirs", "bytes_per_token": 100.0, "notes": "of their own"}
        return {**json.loads(json.dumps(self.result)), "machine": {"processor": "theirs"}, "rows": [row]}

    def test_results_of_others_are_added(self):
        out, _ = self.add(self.theirs())
        with open(os.path.join(out, "results.json")) as file:
            rows = {r["method"]: r for r in json.load(file)["rows"]}
        self.assertTrue(rows["theirs"]["frontier"])  # nobody takes as little
        for page in ("leaderboard.md", "leaderboard.html"):
            with open(os.path.join(out, page)) as file:
                self.assertIn("theirs 50 %", file.read())

    def test_results_of_others_must_be_of_the_same_samples(self):
        other = self.theirs()
        other["manifest"]["seed"] = 99
        for wrong, says in ((other, "other samples"), ({**self.theirs(), "machine": {}}, "machine"),
                            ({**self.theirs(), "rows": [{"method": "theirs"}]}, "share"), ({"rows": []}, "manifest")):
            out, said = self.add(wrong, ok=False)
            self.assertEqual(said.returncode, 7, said.stderr)
            self.assertIn(says, said.stderr)
            self.assertFalse(os.path.exists(os.path.join(out, "leaderboard.html")))  # nothing was changed
        self.assertNotEqual(self.add("no JSON", ok=False)[1].returncode, 0)


if __name__ == "__main__":
    if not (os.path.exists(MODEL) and os.path.exists(TEXT)):
        print("no model or text: skipped (scripts/fetch-model, scripts/fetch-text)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], "-v"])
