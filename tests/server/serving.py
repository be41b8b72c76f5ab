"""A `quire serve` process for tests, and a client of raw sockets.

    with Server(quire, model, "-a", "m") as server:
        server.client.chat.completions.create(...)
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

HURRY = 120  # seconds; a busy machine must not fail a test


class Server:
    def __init__(self, quire, model, *arguments, name="m", environment=None, pass_fds=()):
        self.name = name
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [quire, "serve", str(model), "--port", "0", "-a", name, *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log, env={**os.environ, **(environment or {})},
            pass_fds=pass_fds)
        end = time.time() + HURRY
        while True:
            ready = re.search(r"listening on http://127\.0\.0\.1:(\d+) ", self.output())
            if ready:
                break
            if self.process.poll() is not None or time.time() > end:
                raise RuntimeError(f"the server did not start: {self.output()}")
            time.sleep(0.02)
        self.port = int(ready.group(1))
        self.url = f"http://127.0.0.1:{self.port}"

    def output(self):
        with open(self.log.name) as f:
            return f.read()

    def openai(self, **more):
        import openai
        return openai.OpenAI(base_url=self.url + "/v1", api_key=more.pop("api_key", "none"), max_retries=0,
                             timeout=HURRY, **more)

    def call(self, method, path, body=None, headers=None, raw=False):
        """(status, headers, body); the body parsed unless `raw`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HURRY)
        try:
            data = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            text = response.read()
            return response.status, dict(response.getheaders()), text if raw else json.loads(text)
        finally:
            connection.close()

    def get(self, path, **more):
        status, _, body = self.call("GET", path, **more)
        assert status == 200, (path, status, body)
        return body

    def post(self, path, body, **more):
        status, _, answer = self.call("POST", path, body, **more)
        assert status == 200, (path, status, answer)
        return answer

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(HURRY)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.log.close()


class Wire:
    """A socket that sends and receives exactly what it is told."""

    def __init__(self, server, address="127.0.0.1"):
        self.socket = socket.create_connection(("127.0.0.1", server.port), HURRY, (address, 0))
        self.buffer = b""

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())

    def post(self, path, body, version="1.1", headers=""):
        data = json.dumps(body).encode()
        self.send(f"POST {path} HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data)

    def until(self, mark):
        while mark not in self.buffer:
            part = self.socket.recv(65536)
            if not part:
                break
            self.buffer += part
        at = self.buffer.find(mark)
        size = len(self.buffer) if at < 0 else at + len(mark)
        out, self.buffer = self.buffer[:size], self.buffer[size:]
        return out

    def rest(self):
        while True:
            part = self.socket.recv(65536)
            if not part:
                return self.buffer
            self.buffer += part

    def close(self):
        self.socket.close()


def events(data):
    """The events of an SSE body without its HTTP framing."""
    out = []
    for block in data.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            assert len(lines) == 1 and lines[0].startswith("data: "), block
            out.append(lines[0][6:])
    return out


def unchunk(data):
    out = b""
    while data:
        size, data = data.split(b"\r\n", 1)
        n = int(size, 16)
        out += data[:n]
        data = data[n + 2:]
        if n == 0:
            break
    return out


def in_threads(jobs):
    """Runs functions at once; their results in order, or the first exception."""
    results = [None] * len(jobs)
    problems = []

    def run(i):
        try:
            results[i] = jobs[i]()
        except Exception as e:  # noqa: BLE001 - handed to the caller
            problems.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if problems:
        raise problems[0]
    return results


def wait_for(what, limit=HURRY):
    end = time.time() + limit
    while not what():
        if time.time() > end:
            raise AssertionError("it did not happen in time")
        time.sleep(0.02)


def find_model(argument):
    path = os.environ.get("QUIRE_TEST_MODEL") or argument
    return path if path and os.path.exists(path) else None
