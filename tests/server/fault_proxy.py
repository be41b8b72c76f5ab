"""Stands between a client and a server, passes bytes on, and makes trouble when it is told to.

    with Proxy(port) as proxy:          # proxy.port is where the client connects
        proxy.trouble = "freeze"        # nothing moves any more; "cut": connections break; "flip": a bit in each part
        proxy.delay = 0.05              # seconds that each answer of the server waits
        proxy.rate = 1e6                # bytes per second that the server's answers come with
"""
import random
import select
import socket
import threading
import time


class Proxy:
    def __init__(self, port):
        self.target = port
        self.trouble = None
        self.delay = 0
        self.rate = float("inf")
        self.passed = 0  # connections
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.ended = False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while not self.ended:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.passed += 1
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            with client, socket.create_connection(("127.0.0.1", self.target)) as server:
                chance, last = random.Random(1), 0
                while not self.ended:
                    ready, _, _ = select.select([client, server], [], [], 0.05)
                    if self.trouble == "cut":
                        return
                    if self.trouble == "freeze":
                        time.sleep(0.01)
                        continue
                    for one in ready:
                        data = one.recv(65536)
                        if not data:
                            return
                        if one is server:
                            if time.monotonic() - last > 0.002:  # a new answer, not more of one
                                time.sleep(self.delay)
                            time.sleep(len(data) / self.rate)
                            last = time.monotonic()
                            if self.trouble == "flip":
                                data = bytearray(data)
                                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                        (server if one is client else client).sendall(data)
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True
        self.listener.close()
