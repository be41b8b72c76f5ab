"""A small hub for tests: the API of huggingface.co that fetching needs, and a second server that holds large files.

    with Hub({"acme/tiny": {"config.json": b"{}", "model.safetensors": data}}) as hub:
        environment = {"HF_ENDPOINT": hub.url}

Large files are redirected to the second server, as the real hub does. `hub.faults` says what goes wrong.
"""
import hashlib
import http.server
import json
import ssl
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = 4096  # bytes; what is larger is kept as LFS keeps it


def git_digest(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = None

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def say(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name == "Content-Length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self):
        """Whether a fault answers instead."""
        with self.hub.lock:
            if self.hub.faults.get("statuses"):
                status, headers = self.hub.faults["statuses"].pop(0)
                self.say(status, b"{}", headers)
                return True
        return False

    def do_GET(self):
        hub = self.hub
        with hub.lock:
            hub.asked.append((self.command, self.path, dict(self.headers)))
        if self.refuse():
            return
        if hub.faults.get("token") and self.headers.get("Authorization") != "Bearer " + hub.faults["token"]:
            return self.say(401, b'{"error": "Invalid username or password."}', [("X-Error-Message", "Invalid credentials")])
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        for old, new in hub.faults.get("renamed", {}).items():
            if f"/{old}/" in path:
                return self.say(307, headers=[("Location", self.path.replace(old, new))])
        if path.startswith("/api/models/"):
            return self.listing(path.removeprefix("/api/models/"))
        for repo, files in hub.repos.items():
            for revision in ("main", COMMIT):
                start = f"/{repo}/resolve/{revision}/"
                if path.startswith(start) and path.removeprefix(start) in files:
                    return self.file(path.removeprefix(start), files[path.removeprefix(start)])
        self.say(404, b"{}")

    def listing(self, rest):
        repo, _, revision = rest.partition("/tree/" if "/tree/" in rest else "/revision/")
        if repo not in self.hub.repos or revision not in ("main", COMMIT, ""):
            return self.say(404, b"{}", [("X-Error-Message", "Repository not found")])
        if "/tree/" in rest:  # what newer clients ask
            return self.say(200, json.dumps([self.tree_entry(*file) for file in self.hub.repos[repo].items()]).encode(),
                            [("Content-Type", "application/json")])
        siblings = []
        for name, data in self.hub.repos[repo].items():
            entry = {"rfilename": name}
            if "plain" not in self.hub.faults:
                entry |= {"size": len(data), "blobId": git_digest(data)}
                if len(data) > LARGE:
                    entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(entry | self.hub.faults.get("entry", {}).get(name, {}))
        body = {"id": repo, "sha": self.hub.faults.get("sha", COMMIT), "siblings": siblings + self.hub.faults.get("siblings", [])}
        self.say(200, json.dumps(body).encode(), [("Content-Type", "application/json")])

    @staticmethod
    def tree_entry(name, data):
        entry = {"type": "file", "path": name, "size": len(data), "oid": git_digest(data)}
        if len(data) > LARGE:
            entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry

    def file(self, name, data):
        if len(data) <= LARGE:
            return self.bytes_of(data, [("ETag", f'"{git_digest(data)}"'), ("X-Repo-Commit", COMMIT)])
        digest = hashlib.sha256(data).hexdigest()
        self.hub.large[digest] = data
        self.say(302, headers=[("Location", f"{self.hub.elsewhere}/{digest}"), ("X-Linked-Etag", f'"{digest}"'),
                               ("X-Linked-Size", str(self.hub.faults.get("linked_size", len(data)))), ("X-Repo-Commit", COMMIT)])

    def bytes_of(self, data, headers=()):
        hub, total = self.hub, len(data)
        first, last, status = 0, total - 1, 200
        wanted = self.headers.get("Range")
        headers = list(headers)
        if wanted and not hub.faults.get("no_ranges"):
            first, last = (int(x) for x in wanted.removeprefix("bytes=").split("-"))
            status = 206
            headers.append(("Content-Range", f"bytes {first}-{last}/{hub.faults.get('total', total)}"))
        part = data[first:last + 1]
        if hub.faults.get("flip") and total > LARGE:
            part = bytes([part[0] ^ 1]) + part[1:]
        part += b"x" * hub.faults.get("extra", 0)
        part = part[:len(part) - hub.faults.get("missing", 0)]
        with hub.lock:
            cut = hub.faults["cuts"].pop(0) if hub.faults.get("cuts") and total > LARGE and len(part) > LARGE else None
        if cut is None:
            return self.say(status, part, headers)
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(part)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(part[:cut])
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(2)


class Elsewhere(Handler):
    """The server that large files are redirected to."""

    def do_GET(self):
        hub = self.hub
        with hub.lock:
            hub.asked_elsewhere.append((self.command, self.path, dict(self.headers)))
        if hub.faults.get("elsewhere_statuses"):
            status, headers = hub.faults["elsewhere_statuses"].pop(0)
            return self.say(status, b"{}", headers)
        data = hub.large.get(self.path.strip("/"))
        if data is None:
            return self.say(404)
        self.bytes_of(data)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass


class Hub:
    def __init__(self, repos, certificate=None):
        """`certificate`: a file with one and its key; then the hub speaks TLS, and so does the second server."""
        self.repos, self.faults, self.large = repos, {}, {}
        self.asked, self.asked_elsewhere = [], []
        self.lock = threading.Lock()
        self.servers = [Server(("127.0.0.1", 0), type("H", (kind,), {"hub": self})) for kind in (Handler, Elsewhere)]
        scheme = "http"
        if certificate:
            context, scheme = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "https"
            context.load_cert_chain(certificate)
            for server in self.servers:
                server.socket = context.wrap_socket(server.socket, server_side=True)
        self.url, self.elsewhere = (f"{scheme}://127.0.0.1:{s.server_port}" for s in self.servers)
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.shutdown()
            server.server_close()
