"""OpenVINO GenAI behind the OpenAI API: openvino_server.py MODEL.gguf --threads 2

The package has an engine (continuous batching, prefix caching) and no server in Python, so this is the thinnest that
streams: one thread steps the engine, one reads and writes sockets. Token ids or text, greedy, fixed length.
"""
import asyncio
import json
import os
import threading

from openvino_engine import VERSION, add_request, arguments, open_pipeline
from server import announce

args = arguments()
pipeline = open_pipeline(args, prefix_caching=True)
tokenizer = pipeline.get_tokenizer()
texts = {}  # of a token alone: decoding one by one in every step would cost the engine its thread


def text_of(token):
    if token not in texts:
        texts[token] = tokenizer.decode([token], skip_special_tokens=False) or " "
    return texts[token]


class Engine(threading.Thread):
    """Steps while there is work; hands every token to the loop that wants it."""

    def __init__(self, loop):
        super().__init__(daemon=True)
        self.loop, self.count, self.running = loop, 0, {}
        self.waiting, self.wake = [], threading.Condition()

    def submit(self, ids, count, queue):
        with self.wake:
            self.waiting.append((ids, count, queue))
            self.wake.notify()

    def run(self):
        while True:
            with self.wake:
                while not self.waiting and not self.running:
                    self.wake.wait()
                new, self.waiting = self.waiting, []
            for ids, count, queue in new:
                self.count += 1
                handle = add_request(pipeline, self.count, ids, count)
                self.running[self.count] = (handle, queue, count)
            pipeline.step()
            told = []
            for number, (handle, queue, left) in list(self.running.items()):
                if not handle.can_read():
                    continue
                tokens = [t for output in handle.read().values() for t in output.generated_ids]
                left -= len(tokens)
                told.append((queue, "".join(map(text_of, tokens)), left <= 0))
                self.running[number] = (handle, queue, left)
                if left <= 0:
                    del self.running[number]
            if told:
                self.loop.call_soon_threadsafe(tell, told)


def tell(told):
    for queue, text, last in told:
        queue.put_nowait((text, last))


def prompt_ids(path, body):
    if path.endswith("/chat/completions"):
        body["prompt"] = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
    if isinstance(body["prompt"], list):
        return body["prompt"]
    return [int(t) for t in tokenizer.encode(body["prompt"], add_special_tokens=False).input_ids.data[0]]


def head(kind, more=""):
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}\r\n".encode()


async def complete(engine, path, body, writer):
    ids, count, queue = prompt_ids(path, body), body["max_tokens"], asyncio.Queue()
    engine.submit(ids, count, queue)
    usage = {"prompt_tokens": len(ids), "completion_tokens": count, "total_tokens": len(ids) + count}
    if not body.get("stream"):
        while not (await queue.get())[1]:
            pass
        answer = json.dumps({"choices": [{"index": 0, "text": ""}], "usage": usage}).encode()
        writer.write(head("application/json", f"Content-Length: {len(answer)}\r\n") + answer)
        return
    writer.write(head("text/event-stream", "Transfer-Encoding: chunked\r\n"))

    def event(data):
        line = f"data: {data}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(line), line))

    chat, last = path.endswith("/chat/completions"), False
    while not last:
        text, last = await queue.get()
        event(json.dumps({"choices": [{"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}]}))
    event(json.dumps({"choices": [], "usage": usage}))
    event("[DONE]")
    writer.write(b"0\r\n\r\n")


async def connection(engine, reader, writer):
    try:
        while request := await reader.readuntil(b"\r\n\r\n"):
            lines = request.decode().split("\r\n")
            path, length = lines[0].split(" ")[1], 0
            for line in lines[1:]:
                if line.lower().startswith("content-length:"):
                    length = int(line.split(":")[1])
            body = await reader.readexactly(length)
            if path == "/v1/models":
                answer = json.dumps({"data": [{"id": os.path.basename(args.model)}]}).encode()
                writer.write(head("application/json", f"Content-Length: {len(answer)}\r\n") + answer)
            else:
                await complete(engine, path, json.loads(body), writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    engine = Engine(asyncio.get_running_loop())
    engine.start()
    server = await asyncio.start_server(lambda r, w: connection(engine, r, w), "127.0.0.1", 0)
    url = "http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]
    threading.Thread(target=announce, args=(VERSION, url), daemon=True).start()
    async with server:
        await server.serve_forever()


asyncio.run(main())
