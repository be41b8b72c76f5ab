"""A server for other programs, in this process."""
import json
import urllib.request

import quire

with quire.Server(port=0) as server:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10}
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        print(json.load(answer)["choices"][0]["message"]["content"])
    print(server.stats()["tokens"])
