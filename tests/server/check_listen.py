"""Where the server listens: TLS, and a socket in the file system.

    python3 tests/server/check_listen.py QUIRE WRITE_TINY
"""
import http.client
import json
import os
import pathlib
import re
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time
import unittest

from serving import HURRY

QUIRE, WRITE_TINY = map(os.path.abspath, sys.argv[1:3])
folder = tempfile.TemporaryDirectory()
HERE = pathlib.Path(folder.name)
subprocess.run([WRITE_TINY, folder.name], check=True)
MODEL = HERE / "wide.gguf"
CERTIFICATE, KEY = HERE / "cert.pem", HERE / "key.pem"
subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", KEY, "-out", CERTIFICATE],
               check=True, capture_output=True)


class Process:
    def __init__(self, *arguments, ready=r"listening on (\S+) "):
        self.log = open(HERE / f"log-{time.monotonic_ns()}", "w+")
        self.process = subprocess.Popen([QUIRE, "serve", MODEL, "-a", "m", "--port", "0", *map(str, arguments)], stderr=self.log,
                                        stdin=subprocess.DEVNULL)
        end = time.time() + HURRY
        while not (found := re.search(ready, self.output())):
            if self.process.poll() is not None or time.time() > end:
                raise RuntimeError(self.output())
            time.sleep(0.02)
        self.url = found.group(1)

    def output(self):
        return pathlib.Path(self.log.name).read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(HURRY)
        self.log.close()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=HURRY)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(HURRY)
        self.sock.connect(self.path)


def ask(connection, method, path, body=None):
    connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read()


LONG = {"model": "m", "prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}


class Tls(unittest.TestCase):
    def connection(self, server):
        context = ssl.create_default_context(cafile=CERTIFICATE)
        return http.client.HTTPSConnection("127.0.0.1", int(server.url.rsplit(":", 1)[1]), context=context, timeout=HURRY)

    def test_answers_and_streams(self):
        with Process("--tls-cert", CERTIFICATE, "--tls-key", KEY) as server:
            self.assertTrue(server.url.startswith("https://127.0.0.1:"))
            c = self.connection(server)
            for _ in range(3):  # one connection
                self.assertEqual(ask(c, "GET", "/health")[0], 200)
            large = {"model": "m", "prompt": "y" * 300_000, "max_tokens": 1}
            self.assertEqual(ask(c, "POST", "/v1/completions", large)[0], 400)  # read whole, and too long
            status, body = ask(c, "POST", "/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 20, "stream": True})
            self.assertEqual(status, 200)
            self.assertTrue(body.rstrip().endswith(b"data: [DONE]"))

    def test_a_client_that_leaves_is_noticed(self):
        with Process("--tls-cert", CERTIFICATE, "--tls-key", KEY) as server:
            c = self.connection(server)
            c.request("POST", "/v1/completions", json.dumps(LONG), {"Content-Type": "application/json"})
            c.getresponse().read(100)
            self.assertEqual(json.loads(ask(self.connection(server), "GET", "/v1/kv/stats")[1])["requests"]["running"], 1)
            c.sock.shutdown(socket.SHUT_RDWR)
            c.close()
            end = time.time() + 10
            while json.loads(ask(self.connection(server), "GET", "/v1/kv/stats")[1])["requests"]["running"]:
                self.assertLess(time.time(), end, "it goes on for nobody")
                time.sleep(0.05)

    def test_what_is_no_tls_holds_nobody_up(self):
        with Process("--tls-cert", CERTIFICATE, "--tls-key", KEY) as server:
            port = int(server.url.rsplit(":", 1)[1])
            silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
            plain = socket.create_connection(("127.0.0.1", port), HURRY)
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with self.assertRaises((ConnectionError, EOFError)):
                if not plain.recv(1000).startswith(b"HTTP"):
                    raise EOFError
            self.assertEqual(ask(self.connection(server), "GET", "/health")[0], 200)
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            with self.assertRaises((ssl.SSLError, ConnectionError)):
                old.wrap_socket(socket.create_connection(("127.0.0.1", port), HURRY))
            for s in silent:
                s.close()

    def test_files_that_do_not_fit(self):
        for arguments, says in ((["--tls-cert", CERTIFICATE], "go together"), (["--tls-cert", KEY, "--tls-key", KEY], "is no certificate"),
                                (["--tls-cert", CERTIFICATE, "--tls-key", CERTIFICATE], "is not the key of"),
                                (["--tls-cert", "/none", "--tls-key", KEY], "/none")):
            done = subprocess.run([QUIRE, "serve", MODEL, "--port", "0", *map(str, arguments)], capture_output=True, text=True, timeout=HURRY)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)


class Unix(unittest.TestCase):
    def test_only_its_owner(self):
        path = HERE / "quire.sock"
        with Process("--unix", path) as server:
            self.assertEqual(server.url, f"unix:{path}")
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
            c = UnixConnection(path)
            self.assertEqual(ask(c, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})[0], 200)
            other = subprocess.run([QUIRE, "serve", MODEL, "--unix", path], capture_output=True, text=True, timeout=HURRY)
            self.assertEqual(other.returncode, 5)
            self.assertIn("another server is there", other.stderr)
        self.assertFalse(path.exists())
        with Process("--unix", path, "--unix-mode", "0660") as server:
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o660)
            server.process.kill()
            server.process.wait()
            self.assertTrue(path.exists())
            with Process("--unix", path):  # what a dead server left is replaced
                self.assertEqual(ask(UnixConnection(path), "GET", "/health")[0], 200)
        kept = HERE / "kept"
        kept.write_text("mine")
        for bad, says in ((kept, "something else is there"), (HERE / ("x" * 120), "longer than 107"), (HERE / "no/where", "No such file")):
            done = subprocess.run([QUIRE, "serve", MODEL, "--unix", bad], capture_output=True, text=True, timeout=HURRY)
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertIn(says, done.stderr)
        self.assertEqual(kept.read_text(), "mine")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
