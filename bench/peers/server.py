"""What the peers' servers have in common: bench/serve/compare starts one, reads where it listens, and closes its input.

The program prints {"ready": version, "url": "http://127.0.0.1:port"} once it answers, and ends when standard input does.
"""
import json
import os
import sys


def announce(version, url):
    print(json.dumps({"ready": version, "url": url}), flush=True)
    sys.stdin.read()
    os._exit(0)  # whatever threads the library has
