"""Attacks of one client on a live server, beside a neighbour who measures (attacking.py).

    tests/attacks/check_attacks.py QUIRE WRITE_TINY [NAME...]
"""
import itertools
import socket
import time

from attacking import MEBI, WIDE, Attacks, head, main, post, status
from serving import Wire


class Requests(Attacks):
    def attack_body(self, path, body, expected, size=None, count=4, mebibytes=64):
        request = post(path, body)

        def attack():
            got = status(self.server, request)
            assert got in expected or got == 0, got  # 0: whoever asks for much may wait longer than we do
        self.neighbour(attack, len(request) if size is None else size, count, mebibytes)

    def test_many_keys(self):
        body = b'{"model":"m","prompt":[61],' + b",".join(b'"k%d":1' % i for i in range(100_000)) + b"}"
        self.attack_body("/v1/completions", body, {400})

    def test_many_values(self):
        self.attack_body("/v1/completions", b'{"model":"m","prompt":[' + b"1," * 3_000_000 + b"1]}", {400, 503}, count=2)

    def test_deep_nesting(self):
        self.attack_body("/v1/completions", b"[" * 1_000_000, {400})

    def test_long_text(self):
        self.attack_body("/v1/completions", {"model": "m", "prompt": "a " * 4_000_000}, {400, 503}, count=2)

    def test_many_messages(self):
        messages = [{"role": "user", "content": f"{i} and more"} for i in range(10_000)]
        self.attack_body("/v1/chat/completions", {"model": "m", "messages": messages}, {400})

    def test_a_template_of_the_request(self):
        source = "{% for i in range(99999) %}{% for j in range(99999) %}{% if 'b' in messages[0].content %}{% endif %}{% endfor %}{% endfor %}"
        self.attack_body("/v1/chat/completions", {"model": "m", "chat_template": source, "messages": [
            {"role": "user", "content": "a" * 500_000}]}, {403})

    def test_a_large_schema(self):
        schema = {"type": "object", "properties": {f"p{i}": {"enum": [f"v{j}" for j in range(20)]} for i in range(800)}}
        self.attack_body("/v1/chat/completions", {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
                                                  "guided_json": schema}, {200, 400, 501, 503})

    def test_a_regex_of_repetitions(self):
        self.attack_body("/v1/completions", {"model": "m", "prompt": [61], "max_tokens": 64, "ignore_eos": True,
                                             "logit_bias": {"90": 20, "97": 20}, "guided_regex": "([b-y][a-z]*|Z((a{1,30}){1,30}){1,30})"}, {200, 400, 501, 503})

    def test_prompt_logprobs_of_many_choices(self):
        self.attack_body("/v1/completions", {"model": "m", "prompt": [61 + i % 99 for i in range(100)], "max_tokens": 1, "n": 16,
                                             "prompt_logprobs": 20, "ignore_eos": True}, {200, 400, 429}, size=2000)

    def test_spaces(self):
        """What some pre-tokenizers took quadratic time for, in words of one byte."""
        self.attack_body("/tokenize", {"model": "m", "prompt": " \n" * 400_000}, {200, 503}, count=2)

    def test_one_long_word(self):
        self.attack_body("/tokenize", {"model": "m", "prompt": "a" * 1_000_000}, {200, 503}, count=2)

    def test_tokens_with_their_texts(self):
        self.attack_body("/tokenize", {"model": "m", "content": "a " * 130_000, "with_pieces": True, "return_token_strs": True}, {200, 503}, count=2)
        self.attack_body("/tokenize", {"model": "m", "content": "a" * 1_000_000, "with_pieces": True}, {400, 503}, count=2)

    def test_tokens_that_make_a_long_text(self):
        self.attack_body("/detokenize", {"tokens": [260 - 1] * 65_000}, {200, 400, 503})

    def test_long_messages(self):
        self.attack_body("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "a " * 4_000_000}]}, {400, 503}, count=2)
        self.attack_body("/v1/chat/completions", {"model": "m", "truncate_prompt_tokens": 5, "messages": [
            {"role": "user", "content": "a " * 4_000_000}]}, {400, 503}, count=2)

    def test_long_predictions(self):
        self.attack_body("/v1/completions", {"model": "m", "prompt": [61], "max_tokens": 1, "prediction": {
            "type": "content", "content": "a " * 4_000_000}}, {400, 503}, count=2)
        self.attack_body("/v1/completions", {"model": "m", "prompt": ["a"] * 1000, "max_tokens": 1, "prediction": {
            "type": "content", "content": "a " * 300_000}}, {400, 503}, count=2)

    def test_many_prompts(self):
        self.attack_body("/v1/completions", {"model": "m", "prompt": ["a" * 4000] * 1000, "max_tokens": 1}, {400, 503}, count=2)

    def test_many_texts(self):
        """Values that are no numbers take more memory."""
        self.attack_body("/v1/completions", b'{"model":"m","prompt":[' + b'"",' * 1_000_000 + b'""]}', {400, 503}, count=2)

    def test_beams_that_never_end(self):
        self.attack_body("/v1/completions", {"model": "m", "prompt": [61, 62], "max_tokens": 2000, "use_beam_search": True, "n": 16,
                                             "best_of": 16, "length_penalty": 10, "temperature": 0}, {200, 400, 429}, size=1000, count=2)

    def test_choices_with_all_log_probabilities(self):
        self.attack_body("/v1/completions", {"model": "m", "prompt": [61, 62], "max_tokens": 2000, "n": 16, "logprobs": 5,
                                             "ignore_eos": True, "stream": True}, {200, 400, 429}, size=1000, count=2)

    def test_all_log_probabilities_in_one_answer(self):
        self.attack_body("/v1/completions", {"model": "m", "prompt": [61, 62], "max_tokens": 3500, "n": 4, "logprobs": 20,
                                             "ignore_eos": True}, {400, 429}, size=1000, count=2)

    def test_a_window_and_answers_without_end(self):
        self.attack_body("/v1/completions", {"model": "m", "prompt": [61] * 100, "max_tokens": 1 << 30, "ignore_eos": True,
                                             "kv": {"window": {"size": 64, "sink": 4}, "allow_lossy": True}},
                         {200, 400}, size=1000)

    def test_cached_texts_in_other_places(self):
        """Approximate reuse looks for runs of blocks behind other prefixes."""
        numbers = itertools.count()

        def attack():
            i = next(numbers)
            got = status(self.server, post("/v1/completions", {
                "model": "m", "prompt": [61 + (i + j // 40) % 99 for j in range(3000)], "max_tokens": 1,
                "kv": {"reuse": "approximate", "allow_lossy": True}}))
            assert got in (200, 0), got
        self.neighbour(attack, 12_000)

    def test_policies_that_score_a_long_prompt(self):
        """Each is told by its own name; most of the work is done when the prompt is read."""
        policies = itertools.cycle(("critical-snapkv", "kvzip", "expected", "h2o", "keydiff"))
        numbers = itertools.count()

        def attack():
            i = next(numbers)
            got = status(self.server, post("/v1/completions", {
                "model": "m", "prompt": [61 + i % 99] + [61 + j % 97 for j in range(1500)], "max_tokens": 2, "n": 2,
                "kv": {"budget": {"policy": next(policies), "ratio": 0.2}, "allow_lossy": True}}))
            assert got in (200, 400, 429, 0), got
        self.neighbour(attack, 12_000)

    def test_readers_that_take_nothing(self):
        """Streams whose clients read no byte, with as little room between as a socket allows."""
        wires = []

        def attack():
            if len(wires) < 12:
                wire = Wire(self.server)
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                wires.append(wire)
                wire.send(post("/v1/completions", {"model": "m", "prompt": [61 + len(wires) % 99] * 9, "max_tokens": 3000, "n": 4,
                                                   "logprobs": 5, "stream": True, "ignore_eos": True}))
            time.sleep(0.05)
        try:
            self.neighbour(attack, 1000, count=2)
        finally:
            for wire in wires:
                wire.close()

    def test_looking_at_the_whole_cache(self):
        def attack():
            got = self.server.call("GET", "/v1/kv/tree?limit=10000", raw=True)[0]
            assert got in (200, 429), got
        self.neighbour(attack, 1000)


class Templates(Attacks):
    """A server that runs templates of its requests."""
    arguments = ("--trust-request-templates",)

    def test_templates_that_run_long(self):
        sources = itertools.cycle((
            "{% for i in range(99999) %}{% for j in range(99999) %}{% if 'b' in messages[0].content %}{% endif %}{% endfor %}{% endfor %}",
            "{% for i in range(99999) %}{% if messages[0].content == messages[0].content ~ 'a' %}{% endif %}{% endfor %}",
            "{{ messages[0].content | replace('a', messages[0].content) }}"))

        def attack():
            got = status(self.server, post("/v1/chat/completions", {
                "model": "m", "chat_template": next(sources), "messages": [{"role": "user", "content": "a" * 500_000}]}))
            assert got in (400, 503, 0), got
        self.neighbour(attack, 500_000, count=2)

    def test_templates_that_hold_much(self):
        sources = itertools.cycle((
            "{% set x = range(99999) | list %}" * 20,
            "{% for i in range(99999) %}" * 20 + "{% endfor %}" * 20,
            "{% set ns = namespace(x='') %}{% for i in range(99) %}{% set ns.x = ns.x ~ messages[0].content %}{% endfor %}",
            "{{ [" + "1," * 120_000 + "1] }}",
            "{% set x = messages[0].content | list %}"))

        def attack():
            got = status(self.server, post("/v1/chat/completions", {
                "model": "m", "chat_template": next(sources), "messages": [{"role": "user", "content": "a" * 500_000}]}))
            assert got in (400, 503, 0), got
        self.neighbour(attack, 500_000, count=2)


class Scoring(Attacks):
    """A model whose layers take their time: scoring a long prompt is as much work as many steps."""
    model, cache, filling = WIDE, "64MiB", 400
    arguments = ("--max-model-len", "8192")
    numbers = itertools.count()

    @classmethod
    def ordinary_prompt(cls):
        """As long as those that are scored, and nobody had it before."""
        i = next(cls.numbers)
        return [61 + i % 99, 61 + i // 99] + [61 + j * (i + 7) % 97 for j in range(2500)]

    def attack_budgets(self, budgets, **more):
        budgets = itertools.cycle(budgets)

        def attack():
            got = status(self.server, post("/v1/completions", {
                "model": "m", "prompt": self.ordinary_prompt(), "max_tokens": 2, **more,
                "kv": {"budget": next(budgets), "allow_lossy": True}}))
            assert got in (200, 429, 503, 0), got
        self.neighbour(attack, 12_000, count=1)

    def test_values_that_are_weighed(self):
        self.attack_budgets([{"policy": "critical-snapkv", "ratio": 0.2}])

    def test_values_that_are_weighed_for_several_choices(self):
        self.attack_budgets([{"policy": "critical-expected", "ratio": 0.2}, {"policy": "kvzip", "ratio": 0.3}], n=2)

    def test_tokens_that_are_merged(self):
        self.attack_budgets([{"policy": "snapkv", "ratio": 0.3, "merge": "d2o"}])


class Places(Attacks):
    """Without keys an address is a client."""

    def test_answers_that_take_every_place(self):
        request = post("/v1/completions", {"model": "m", "prompt": [61, 62], "max_tokens": 4000, "n": 16, "ignore_eos": True})

        def attack():
            got = status(self.server, request, address="127.0.0.2")
            assert got in (200, 429, 0), got
        self.neighbour(attack, 1000, count=8)

    def test_a_full_queue(self):
        request = post("/v1/completions", {"model": "m", "prompt": [61, 62], "max_tokens": 4000, "ignore_eos": True})
        wires = []

        def attack():
            if len(wires) < 620:
                wires.append(Wire(self.server, "127.0.0.2"))
                wires[-1].send(request)
            else:
                time.sleep(0.05)

        def leave():
            for wire in wires:
                wire.close()
        try:
            self.neighbour(attack, 1000, count=2, leave=leave)
        finally:
            leave()


class Connections(Attacks):
    def test_a_chunk_extension(self):
        request = head("/v1/completions", more="Transfer-Encoding: chunked\r\n") + b"3;" + b"x" * (8 * MEBI)

        def attack():
            got = status(self.server, request)
            assert got in (431, 0), got
        self.neighbour(attack, 1000)

    def test_a_trailer(self):
        request = head("/v1/completions", more="Transfer-Encoding: chunked\r\n") + b"0\r\n" + b"a: b\r\n" * MEBI

        def attack():
            got = status(self.server, request)
            assert got in (431, 0), got
        self.neighbour(attack, 1000)

    def test_unfinished_bodies(self):
        part = b" " * (8 * MEBI)

        def attack():
            wire = Wire(self.server)
            try:
                wire.socket.settimeout(10)
                wire.send(head("/v1/completions", 32 * MEBI) + part)
                time.sleep(0.5)
            except OSError:
                pass
            wire.close()
        self.neighbour(attack, 1000, count=12)

    def test_trickling_connections(self):
        wires = []

        def attack():
            if len(wires) < 200:
                wires.append(Wire(self.server))
                wires[-1].send(head("/v1/completions", 1000)[:-2 if len(wires) % 2 else None])
            for wire in wires[:50]:
                try:
                    wire.send(b"x")
                except OSError:
                    pass
            time.sleep(0.02)
        self.neighbour(attack, 1000, count=1)
        for wire in wires:
            wire.close()

    def test_a_hidden_request(self):
        for coding in ("gzip", "identity", "gzip, chunked", "chunked, identity"):
            hidden = b"POST /reset_prefix_cache HTTP/1.1\r\nHost: localhost\r\n\r\n"
            wire = Wire(self.server)
            wire.send(head("/v1/completions", more=f"Transfer-Encoding: {coding}\r\n") + hidden)
            answers = wire.rest()
            self.assertTrue(answers.startswith(b"HTTP/1.1 400 "), answers)
            self.assertEqual(answers.count(b"HTTP/1.1 "), 1)
            wire.close()


class Pages(Attacks):
    """What a web page can do to the server of whoever looks at it."""

    def call(self, method, path, headers, body=None):
        return self.server.call(method, path, body, headers=headers, raw=True)[0]

    def test_another_page(self):
        evil = {"Origin": "https://evil.example"}
        self.assertEqual(self.call("POST", "/reset_prefix_cache", {**evil, "Content-Type": "text/plain"}, "{}"), 403)
        self.assertEqual(self.call("POST", "/v1/chat/completions", {**evil, "Content-Type": "text/plain"}, "{}"), 403)
        self.assertEqual(self.call("GET", "/v1/kv/tree", evil), 403)
        self.assertEqual(self.call("POST", "/v1/completions", {"Sec-Fetch-Site": "cross-site"}, "{}"), 403)
        own = {"Origin": self.server.url, "Host": f"127.0.0.1:{self.server.port}"}
        self.assertEqual(self.call("POST", "/v1/completions", {**own, "Content-Type": "text/plain"}, "{}"), 415)
        self.assertEqual(self.call("POST", "/reset_prefix_cache", own, "{}"), 200)

    def test_a_name_that_points_here(self):
        self.assertEqual(self.call("GET", "/v1/kv/tree", {"Host": "rebound.example"}), 403)
        self.assertEqual(self.call("GET", "/", {"Host": "localhost:8080"}), 200)
        self.assertEqual(self.call("GET", "/health", {"Host": "10.1.2.3"}), 403)

    def test_a_preflight_of_a_stranger(self):
        _, headers, _ = self.server.call("OPTIONS", "/v1/chat/completions", raw=True, headers={
            "Origin": "https://evil.example", "Access-Control-Request-Method": "POST"})
        self.assertNotIn("Access-Control-Allow-Origin", headers)


if __name__ == "__main__":
    main()
