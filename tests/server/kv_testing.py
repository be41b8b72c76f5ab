"""What tests of a request's `kv` share: tiny models in a folder, a server of one of them, and a way to ask it."""
import subprocess
import sys
import tempfile
import unittest

from serving import Server

QUIRE, WRITE_TINY = sys.argv[1:3]
folder = tempfile.TemporaryDirectory()
subprocess.run([WRITE_TINY, folder.name], check=True)


def tiny(name):
    return f"{folder.name}/{name}.gguf"


class KvTest(unittest.TestCase):
    model = None  # of the class that inherits this

    @classmethod
    def setUpClass(cls):
        cls.server = Server(QUIRE, cls.model)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def complete(self, text, kv, status=200, server=None, **more):
        code, _, body = (server or self.server).call("POST", "/v1/completions", {
            "model": "m", "prompt": text, "max_tokens": 60, "temperature": 0, "ignore_eos": True,
            "kv": {"allow_lossy": True, "report": ["usage"], **kv}, **more})
        self.assertEqual(code, status, body)
        return body

    def text(self, *ask, **more):
        return self.complete(*ask, **more)["choices"][0]["text"]
