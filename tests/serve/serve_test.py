"""trireme-serve: both forms of its API, its limits, and clients that misbehave.

More requests of the fuzz test: TRIREME_FUZZ=10000 ctest -R '^serve$', or python3 serve_test.py Serve.test_fuzz.
"""

import contextlib
import http.client
import json
import math
import os
import random
import shutil
import signal
import socket
import threading
import time
import unittest

import browser
from runs import FINISHED, HERE, IO, PATIENCE, SCRATCH, USAGE, RunTest, Started, command_line, dataset, run

TOKEN = "a secret of this test"


class Server:
    """A server of the trained run, and requests to it."""

    def __init__(self, folder, *words, ranks=1, token=None):
        self.started = Started(command_line("trireme-serve", "--checkpoint", folder, "--device", "host",
                                            "--bind", "127.0.0.1:0", *words, ranks=ranks))
        self.token = token
        self.head = ""
        for line in self.started.error_lines():
            self.head += line
            if "http://" in line:
                break
        else:
            raise RuntimeError(str(self.started.finish()))
        self.port = int(self.head.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.started.__exit__()

    def connect(self, timeout=PATIENCE):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None, timeout=PATIENCE):
        """Status and text of the answer."""
        headers = dict(headers or {})
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        connection = self.connect(timeout)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def complete(self, **body):
        status, text = self.ask("POST", "/v1/completions", body)
        if status != 200:
            raise AssertionError((status, text))
        return json.loads(text)

    def metric(self, name):
        text = self.ask("GET", "/metrics")[1]
        return int([line.split()[1] for line in text.splitlines()
                    if line.startswith(f"trireme_{name} ")][0])

    def stop(self, number=signal.SIGTERM):
        self.started.process.send_signal(number)
        return self.started.finish()


class Serve(RunTest):
    @classmethod
    def setUpClass(cls):
        cls.run_folder = SCRATCH / cls.__name__ / "trained"
        shutil.rmtree(cls.run_folder, ignore_errors=True)
        result = run("trireme-pretrain", HERE / "tiny.yaml", f"data.train={dataset()}",
                     f"run.output={cls.run_folder}", "run.device=host", "schedule.peak=1e-2",
                     "model.positions=256")
        if result.code != FINISHED:
            raise RuntimeError(str(result))
        cls.server = Server(cls.run_folder, "--batch", 8, "--max-body", 20000, "--max-tokens", 200)

    @classmethod
    def tearDownClass(cls):
        result = cls.server.stop()
        assert result.code == FINISHED and "stopped; " in result.err, result
        assert str(SCRATCH) not in cls.server.head + result.err + result.out, "it prints a path"

    def generated(self, *words):
        result = run("trireme-generate", "--checkpoint", self.run_folder, "--device", "host",
                     "--json", *words)
        self.assertEqual(result.code, FINISHED, result)
        return [json.loads(line) for line in result.out.splitlines()]

    def test_completions_are_those_of_generate(self):
        greedy = self.generated("--prompt", "Licensed", "--greedy", "--tokens", 12, "--logprobs", 2)[0]
        found = self.server.complete(prompt="Licensed", temperature=0, max_tokens=12, logprobs=2)
        self.assertEqual(found["choices"][0]["text"], greedy["text"])
        self.assertEqual(found["choices"][0]["finish_reason"], "length")
        self.assertEqual(found["usage"], {"prompt_tokens": 8, "completion_tokens": 12,
                                          "total_tokens": 20})
        scores = found["choices"][0]["logprobs"]
        for score, top, token in zip(scores["token_logprobs"], scores["top_logprobs"],
                                     greedy["logprobs"]):
            self.assertTrue(math.isclose(score, token["logprob"], rel_tol=1e-4))
            self.assertEqual(len(top), 2)
        sampled = self.generated("--prompt", "the", "--prompt", "Work", "--samples", 2, "--seed", 5,
                                 "--tokens", 9, "--top-k", 30, "--temperature", 0.8)
        found = self.server.complete(prompt=["the", "Work"], n=2, seed=5, max_tokens=9, top_k=30,
                                     temperature=0.8)
        self.assertEqual([choice["text"] for choice in found["choices"]],
                         [line["text"] for line in sampled])
        self.assertEqual(found["usage"]["prompt_tokens"], 3 + 4, "a prompt counts once, as OpenAI's")
        ids = self.server.complete(prompt=[*b"Licensed"], temperature=0, max_tokens=12, echo=True)
        self.assertEqual(ids["choices"][0]["text"], "Licensed" + greedy["text"])
        stop = greedy["text"][4]
        found = self.server.complete(prompt="Licensed", temperature=0, max_tokens=12, stop=[stop])
        text = greedy["text"].split(stop)[0]
        self.assertEqual(found["choices"][0]["text"], text)
        self.assertEqual(found["choices"][0]["finish_reason"], "stop")
        self.assertEqual(found["usage"]["completion_tokens"], len(text) + 1, "the stop is generated, too")

    def test_megatrons_form(self):
        greedy = self.generated("--prompt", "Licensed", "--greedy", "--tokens", 6)[0]
        for method in ("PUT", "POST"):
            status, text = self.server.ask(method, "/api", {
                "prompts": ["Licensed", "the"], "tokens_to_generate": 6, "top_k": 1, "logprobs": True})
            self.assertEqual(status, 200, text)
            found = json.loads(text)
            self.assertEqual(found["text"][0], "Licensed" + greedy["text"])
            self.assertEqual("".join(found["segments"][0]), found["text"][0])
            self.assertEqual(len(found["logprobs"][1]), 6)
        for body, message in (({}, "prompts argument required"), ({"prompts": "a"}, "not a list"),
                              ({"prompts": ["a"], "max_len": 3}, "tokens_to_generate"),
                              ({"prompts": ["a"], "beam_width": 2}, "beam_width is not supported"),
                              ({"prompts": ["a"], "max_tokens": 3}, "there is no key 'max_tokens'"),
                              ({"prompts": ["a"], "top_k": 2, "top_p": 0.5}, "both top-k and top-p")):
            status, text = self.server.ask("PUT", "/api", body)
            self.assertEqual(status, 400, text)
            self.assertIn(message, text)

    def stream(self, **body):
        """The choices of the events of a streamed answer."""
        status, text = self.server.ask("POST", "/v1/completions", {**body, "stream": True})
        self.assertEqual(status, 200, text)
        events = text.split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        return [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]

    def test_streams_give_the_same_text_in_pieces(self):
        body = {"prompt": ["Licensed", "the"], "temperature": 0, "max_tokens": 20}
        whole = self.server.complete(**body)["choices"]
        pieces = self.stream(**body, logprobs=1)
        for index in (0, 1):
            mine = [piece for piece in pieces if piece["index"] == index]
            self.assertEqual("".join(piece["text"] for piece in mine), whole[index]["text"])
            self.assertEqual([piece["finish_reason"] for piece in mine if piece["finish_reason"]],
                             ["length"])
            self.assertEqual(sum(len(piece["logprobs"]["tokens"]) for piece in mine), 20)
        # One batch: tokens of one come between those of the other.
        order = [piece["index"] for piece in pieces]
        self.assertNotEqual(order, sorted(order))

    def test_other_addresses(self):
        status, text = self.server.ask("GET", "/health")
        self.assertEqual((status, json.loads(text)), (200, {"status": "ok", "model": "tiny-20"}))
        for ranges in ("bytes=0-0", "bytes=1-2,4-5"):  # which are not supported
            self.assertEqual(self.server.ask("GET", "/health", headers={"Range": ranges}), (200, text))
        status, text = self.server.ask("GET", "/")
        self.assertEqual(status, 200)
        self.assertIn("<title>Trireme</title>", text)
        self.assertNotIn("http://", text)
        model, = json.loads(self.server.ask("GET", "/v1/models")[1])["data"]
        self.assertLess(abs(model.pop("created") - time.time()), 1000)
        self.assertEqual(model, {"id": "tiny-20", "object": "model", "owned_by": "trireme"})
        before = self.server.metric("generated_tokens_total")
        self.server.complete(prompt="the", max_tokens=5, temperature=0)
        self.assertEqual(self.server.metric("generated_tokens_total"), before + 5)
        for method, path in (("GET", "/absent"), ("GET", "/../../etc/passwd"), ("DELETE", "/api")):
            status, text = self.server.ask(method, path)
            self.assertEqual(status, 404, text)
            self.assertEqual(json.loads(text)["error"]["message"], "there is nothing at this address")

    def test_bad_requests(self):
        long = "x" * 300
        for body, status, message in (
                (b'{"stop":' + b"[" * 5000 + b"]" * 5000 + b"}", 400, "nested deeper than 500"),
                (b"{", 400, "not JSON"), (b"[1]", 400, "not a JSON object"),
                ({"prompt": 5}, 400, "prompt: expected"), ({"prompt": [[]]}, 400, "prompt: expected"),
                ({"prompt": [300]}, 400, "token ids below 257"),
                ({"prompt": [-1]}, 400, "token ids below 257"),
                ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens: expected a whole number from 1"),
                ({"prompt": "a", "max_tokens": 201}, 400, "from 1 to 200"),
                ({"prompt": "a", "max_tokens": 2**64}, 400, "max_tokens"),
                ({"prompt": "a", "temperature": "hot"}, 400, "temperature: expected a number"),
                ({"prompt": "a", "n": 17}, 400, "n: expected"),
                ({"prompt": ["a"] * 9, "n": 2}, 400, "at most 16 continuations"),
                ({"prompt": "a", "best_of": 3}, 400, "best_of is not supported"),
                ({"prompt": "a", "max_token": 3}, 400, "no key 'max_token'; did you mean 'max_tokens'?"),
                ({"prompt": "a", "x" * 5000: 3}, 400, "there is no key 'xxx"),
                ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options is not"),
                ({"prompt": "a", "logit_bias": {"1": 5}}, 400, "logit_bias is not supported"),
                ({"prompt": "a", "stop": [1]}, 400, "stop: expected"),
                ({"prompt": long}, 400, "the prompt has 300 tokens, more than the 255 allowed"),
                ({"prompt": "x" * 30000}, 413, "too large")):
            found, text = self.server.ask("POST", "/v1/completions", body)
            self.assertEqual(found, status, (body, text))
            self.assertIn(message, json.loads(text)["error"]["message"])

    def test_requests_without_a_length_are_refused_at_once(self):
        for method, path in (("POST", "/v1/completions"), ("PUT", "/api")):
            with contextlib.closing(self.server.connect()) as connection:
                connection.putrequest(method, path)
                connection.endheaders()
                answer = connection.getresponse()
                self.assertEqual(answer.status, 411)
                self.assertIn(b"the request has no Content-Length", answer.read())

    def raw(self, data, wait=True):
        """Sends bytes; returns what comes back before the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE) as client:
            with contextlib.suppress(OSError):
                client.sendall(data)
                if not wait:
                    return b""
                client.shutdown(socket.SHUT_WR)
                answer = b""
                while piece := client.recv(65536):
                    answer += piece
                return answer
        return b""

    def test_page_in_a_browser(self):
        """Continues a prompt on the page; the screenshot is left in the scratch folder."""
        path = browser.find()
        if not path:
            self.skipTest(f"there is no headless browser: {', '.join(browser.NAMES)}")
        words = ["--prompt", "Licensed", "--greedy", "--tokens", 12]
        expected = self.generated(*words)[0]["text"]
        port = self.server.port
        with browser.Page(path, f"http://127.0.0.1:{port}/", self.folder / "profile") as page:
            page.wait("typeof at == 'function' && at('model').textContent != ''")
            page.evaluate("at('prompt').value = 'Licensed'; at('max_tokens').value = 12;"
                          "at('temperature').value = 0; at('go').click()")
            page.wait("at('state').textContent.includes('ended by')")
            self.assertEqual(page.evaluate("at('answer').textContent"), "Licensed" + expected)
            state = page.evaluate("at('state').textContent")
            self.assertTrue(state.startswith("12 tokens in ") and state.endswith("by length"), state)
            self.assertEqual(page.evaluate("document.querySelectorAll('#answer .token').length"), 12)
            self.assertIn(" %\n", page.evaluate("document.querySelector('#answer .token').title"))
            page.screenshot(self.folder / "page.png")
            self.assertEqual((self.folder / "page.png").read_bytes()[:4], b"\x89PNG")
            # A text that is stopped, and a refused request.
            page.evaluate("at('max_tokens').value = 190; at('go').click(); at('end').click()")
            page.wait("at('state').textContent == 'stopped' && !at('go').disabled")
            page.evaluate("at('max_tokens').value = 5000; at('go').click()")
            page.wait("at('state').textContent.includes('max_tokens')")
            self.assertEqual(page.errors, [])

    def test_fuzz(self):
        """Seeded requests, well-formed to a different degree; the server answers all of them."""
        rng = random.Random(17)
        good = json.dumps({"prompt": "the", "max_tokens": 2, "temperature": 0.5, "stop": ["a"],
                           "logprobs": 1, "stream": True, "seed": 3}).encode()
        values = [None, True, -1, 0, 1, 2**63, 2**64, -2**63, 1e308, "", "\ud800", [], {}, [[1]],
                  "x" * 500, {"a": [{}]}, 0.5, [None], ["a", 1]]
        shared = ["temperature", "top_p", "top_k", "logprobs", "unknown"]
        bodies = {"/v1/completions": ({"prompt": "a", "max_tokens": 2}, [
                      *shared, "prompt", "max_tokens", "n", "stop", "stream", "seed", "echo", "min_p", "suffix"]),
                  "/api": ({"prompts": ["a"], "tokens_to_generate": 2}, [
                      *shared, "prompts", "tokens_to_generate", "add_BOS", "random_seed", "beam_width"])}
        for number in range(int(os.environ.get("TRIREME_FUZZ", 300))):
            kind = rng.randrange(4)
            path = rng.choice(sorted(bodies))
            if kind == 0:  # valid JSON with odd values
                body, keys = dict(bodies[path][0]), bodies[path][1]
                for _ in range(rng.randint(1, 3)):
                    body[rng.choice(keys)] = rng.choice(values)
                status, text = self.server.ask("POST", path, json.dumps(body))
                self.assertIn(status, (200, 400, 413), (number, body, text))
            elif kind == 1:  # bytes of a good one changed
                body = bytearray(good)
                for _ in range(rng.randint(1, 6)):
                    body[rng.randrange(len(body))] = rng.randrange(256)
                status, text = self.server.ask("POST", path, bytes(body))
                self.assertIn(status, (200, 400), (number, bytes(body), text))
            elif kind == 2:  # nested deeply, cut off, or noise
                body = rng.choice([b"[" * 9000, b'{"a":' * 3000, good[:rng.randrange(len(good))],
                                   rng.randbytes(rng.randint(0, 2000))])
                status, text = self.server.ask("POST", path, body)
                self.assertEqual(status, 400, (number, body[:50], text))
            else:  # a broken protocol
                head = rng.choice([b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
                                   b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 20 + b"\r\n\r\n",
                                   b"PUT /api HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                                   b"GET /" + b"a" * rng.choice([100, 20000]) + b" HTTP/1.1\r\n\r\n",
                                   b"GET / HTTP/1.1\r\nX: " + rng.randbytes(50) + b"\r\n\r\n"])
                answer = self.raw(head, wait=rng.random() < 0.7)
                self.assertNotIn(str(SCRATCH).encode(), answer)
        self.assertEqual(self.server.complete(prompt="the", max_tokens=3)["object"], "text_completion")
        self.assertEqual(self.server.metric("requests_failed_total"), 0)

    def test_64_clients(self):
        expected = {prompt: self.server.complete(prompt=prompt, temperature=0, max_tokens=10)
                    ["choices"][0]["text"] for prompt in ("the", "Work", "Licensed", "You may")}
        found, errors = [], []

        def client(i):
            prompt = sorted(expected)[i % 4]
            try:
                deadline = time.monotonic() + PATIENCE
                while time.monotonic() < deadline:
                    status, text = self.server.ask("POST", "/v1/completions", {
                        "prompt": prompt, "temperature": 0, "max_tokens": 10})
                    if status != 429:  # the queue holds 64, the batch 8
                        break
                    time.sleep(0.05)
                found.append((prompt, json.loads(text)["choices"][0]["text"]))
            except Exception as error:  # reported by the test's thread
                errors.append(repr(error))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(len(found), 64)
        for prompt, text in found:
            self.assertEqual(text, expected[prompt])

    def test_continuations_share_passes(self):
        """Those of one request are there together, however slow clients are: alone they would take 8 * 10 passes."""
        before = self.server.metric("passes_total")
        choices = self.server.complete(prompt=["the"] * 8, temperature=0, max_tokens=10)["choices"]
        self.assertEqual(len(choices), 8)
        self.assertLess(self.server.metric("passes_total") - before, 8 * 10 / 2)

    def test_clients_that_go_away_are_dropped(self):
        for streams in (False, True):
            body = {"prompt": ["the"] * 16, "max_tokens": 200, "temperature": 0, "stop": ["\u0001"], "stream": streams}
            deadline = time.monotonic() + PATIENCE
            while not (connections := self.started_requests(body)):  # answered before the server was looked at
                self.assertLess(time.monotonic(), deadline)
            for connection in connections:
                connection.close()
            tokens = self.server.metric("generated_tokens_total")
            while self.server.metric("continuations_active") > 0:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.02)
            self.assertLess(self.server.metric("generated_tokens_total") - tokens, 4 * 16 * 200)

    def started_requests(self, body):
        """Connections of four requests, some of which are seen under way; none where that was too quick."""
        before = self.server.metric("generated_tokens_total")
        connections = [self.server.connect() for _ in range(4)]
        for connection in connections:
            connection.request("POST", "/v1/completions", json.dumps(body))
        if body["stream"]:
            connections[0].getresponse().read(10)
        deadline = time.monotonic() + PATIENCE
        while self.server.metric("generated_tokens_total") == before:
            self.assertLess(time.monotonic(), deadline)
        if self.server.metric("continuations_active") > 0:
            return connections
        for connection in connections:
            connection.close()
        return []

    def test_a_slow_reader_holds_up_nobody(self):
        slow = socket.create_connection(("127.0.0.1", self.server.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        body = json.dumps({"prompt": ["a"] * 4, "max_tokens": 200, "stream": True, "logprobs": 20})
        slow.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                     .encode() + body.encode())
        # It does not read before the answer has come.
        self.server.complete(prompt="the", max_tokens=5)
        slow.close()

    def test_queue_time_and_token(self):
        token = self.folder / "token"
        token.write_text(TOKEN + "\n")
        with Server(self.run_folder, "--token-file", token, "--queue", 2, "--batch", 1,
                    "--time-limit", 1, "--max-tokens", 100000, token=TOKEN) as server:
            self.assertEqual(server.ask("GET", "/metrics", headers={"Authorization": "Bearer x"})[0], 401)
            status, text = server.ask("POST", "/v1/completions", {"prompt": "a"},
                                      headers={"Authorization": ""})
            self.assertEqual(status, 401, text)
            self.assertEqual(server.ask("GET", "/health", headers={"Authorization": ""})[0], 200)
            status, text = server.ask("POST", "/v1/completions", {"prompt": "a", "n": 3})
            self.assertEqual((status, "n: expected a whole number from 1 to 2" in text), (400, True), text)
            answers = []
            threads = [threading.Thread(target=lambda: answers.append(server.ask(
                "POST", "/v1/completions", {"prompt": "a", "n": 2, "max_tokens": 200}))) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertIn(200, [status for status, _ in answers])
            self.assertTrue(any(status == 429 and "the queue is full" in text for status, text in answers), answers)
            self.assertEqual(server.complete(prompt="a", n=2, max_tokens=3)["object"],
                             "text_completion")
            result = server.stop(signal.SIGINT)
            self.assertEqual(result.code, FINISHED, result)
            self.assertNotIn(TOKEN, result.err)

    def test_sigterm_under_load_ends_what_is_under_way(self):
        with Server(self.run_folder, "--batch", 4, "--drain", PATIENCE) as server:
            answers = []

            def client(i):  # until the server is gone
                with contextlib.suppress(OSError, http.client.HTTPException):
                    while True:
                        answers.append(server.ask("POST", "/v1/completions", {
                            "prompt": f"the {i}", "max_tokens": 60, "temperature": 0}))

            threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + PATIENCE
            while server.metric("continuations_active") == 0:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            result = server.stop()
            for thread in threads:
                thread.join()
            self.assertEqual(result.code, FINISHED, result)
            self.assertGreater(len(answers), 0)
            for status, text in answers:
                self.assertIn(status, (200, 503), text)
                if status == 200:
                    self.assertEqual(json.loads(text)["choices"][0]["finish_reason"], "length")

    def test_sigterm_ends_it_whatever_clients_do(self):
        """Time-outs restart with each byte that a client sends or reads: one at a time takes hours."""
        with Server(self.run_folder, "--batch", 4, "--drain", 1) as server:
            clients = [socket.socket() for _ in range(3)]
            body, head, reader = clients
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            for client in clients:
                client.connect(("127.0.0.1", server.port))
            request = "POST /v1/completions HTTP/1.1\r\nContent-Length: "
            body.sendall(f"{request}10000\r\n\r\n{{".encode())
            head.sendall(b"GET / HTTP/1.1\r\nX: ")
            work = json.dumps({"prompt": ["a"] * 4, "max_tokens": 200, "stream": True, "logprobs": 20})
            reader.sendall(f"{request}{len(work)}\r\n\r\n{work}".encode())
            ended = threading.Event()

            def dawdle():
                while not ended.wait(0.2):
                    for step in (lambda: body.send(b" "), lambda: head.send(b"a"), lambda: reader.recv(1)):
                        with contextlib.suppress(OSError):
                            step()

            thread = threading.Thread(target=dawdle)
            thread.start()
            try:
                time.sleep(1)
                server.started.process.send_signal(signal.SIGTERM)
                result = server.started.finish(patience=30)
            finally:
                ended.set()
                thread.join()
                for client in clients:
                    client.close()
            self.assertEqual(result.code, FINISHED, result)

    def test_tensor_and_pipeline_ranks(self):
        expected = self.server.complete(prompt="Licensed", temperature=0, max_tokens=8)
        for layout in (["--tensor", 2], ["--pipeline", 2]):
            with Server(self.run_folder, *layout, ranks=2) as server:
                found = server.complete(prompt="Licensed", temperature=0, max_tokens=8)
                self.assertEqual(found["choices"], expected["choices"])

    def test_what_is_wrong_is_said(self):
        for code, text, *words in (
                (USAGE, "--bind 0.0.0.0:1 is open to other machines: give --token-file", "--bind",
                 "0.0.0.0:1"),
                (USAGE, "--bind x: expected HOST:PORT", "--bind", "x"),
                (USAGE, "--batch 0: expected 1 to", "--batch", 0),
                (USAGE, "--time-limit 0: expected 0.001 to 1e6 seconds", "--time-limit", 0),
                (IO, "the address is in use", "--bind", f"127.0.0.1:{self.server.port}")):
            result = run("trireme-serve", "--checkpoint", self.run_folder, "--device", "host", *words)
            self.assertEqual(result.code, code, result)
            self.assertEqual(result.err.count(text), 1, result)


class SentencePieces(RunTest):
    """Pieces whose blanks and characters depend on the tokens around them: bytes of characters that the model lacks."""

    @classmethod
    def setUpClass(cls):
        folder = SCRATCH / cls.__name__
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        text, model = folder / "licence.txt", folder / "pieces.model"
        shutil.copy(HERE.parents[1] / "LICENSE", text)
        spec = ["--tokenizer", "sentencepiece", "--model", model]
        for words in (["trireme-tokenizer", "train", "--input", text, "--output", model, "--size", 350],
                      ["trireme-preprocess", "--input", text, "--output", folder / "data", *spec],
                      ["trireme-pretrain", HERE / "tiny.yaml", f"data.train={folder / 'data'}_text_document",
                       f"data.tokenizer={{type: sentencepiece, model: {model}}}", f"run.output={folder / 'run'}",
                       "run.device=host", "schedule.peak=1e-2", "model.positions=256"]):
            result = run(*words)
            if result.code != FINISHED:
                raise RuntimeError(str(result))
        cls.server = Server(folder / "run", "--batch", 8)

    @classmethod
    def tearDownClass(cls):
        result = cls.server.stop()
        assert result.code == FINISHED, result

    def check(self, text, scores):
        """Tokens joined are the text, and begin at their offsets."""
        self.assertEqual("".join(scores["tokens"]), text)
        for i, (token, offset) in enumerate(zip(scores["tokens"], scores["text_offset"], strict=True)):
            self.assertEqual(offset, len("".join(scores["tokens"][:i])))
            self.assertEqual(text[offset:offset + len(token)], token)

    def test_tokens_are_the_text(self):
        for prompt in ("Licensed under the", "Liç "):
            for seed in range(4):
                body = {"prompt": prompt, "max_tokens": 40, "seed": seed, "temperature": 1.3, "logprobs": 3}
                whole = self.server.complete(**body)["choices"][0]
                self.check(whole["text"], whole["logprobs"])
                self.assertEqual(len(whole["logprobs"]["tokens"]), 40)
                self.assertTrue(any(" " in token for token in whole["logprobs"]["tokens"]), whole)
                self.assertTrue(any(text.startswith(" ") for top in whole["logprobs"]["top_logprobs"] for text in top), whole)
                stop = whole["text"][len(whole["text"]) // 2:][:3]
                cut = self.server.complete(**body, stop=[stop])["choices"][0]
                self.assertEqual(cut["text"], whole["text"].split(stop)[0])
                self.check(cut["text"], cut["logprobs"])

    def test_streams_have_the_same_tokens(self):
        body = {"prompt": "Licensed under the", "max_tokens": 30, "temperature": 0, "logprobs": 2}
        whole = self.server.complete(**body)["choices"][0]["logprobs"]
        status, text = self.server.ask("POST", "/v1/completions", {**body, "stream": True})
        self.assertEqual(status, 200, text)
        events = [json.loads(event.removeprefix("data: "))["choices"][0]["logprobs"] for event in text.split("\n\n")[:-2]]
        for key in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            self.assertEqual([value for event in events for value in event[key] or []], whole[key], key)

    def test_segments_are_the_text(self):
        status, text = self.server.ask("PUT", "/api", {"prompts": ["Licensed under the ç"], "tokens_to_generate": 9, "top_k": 1})
        self.assertEqual(status, 200, text)
        found = json.loads(text)
        self.assertEqual("".join(found["segments"][0]), found["text"][0])

    def test_segments_are_those_of_the_tokens(self):
        for seed in range(8):
            body = {"prompts": ["Licensed under the"], "tokens_to_generate": 12, "random_seed": seed + 1, "logprobs": True}
            status, text = self.server.ask("PUT", "/api", body)
            self.assertEqual(status, 200, text)
            found = json.loads(text)
            status, text = self.server.ask("PUT", "/api", {**body, "logprobs": False})
            self.assertEqual(json.loads(text)["segments"], found["segments"])
            generated = len(found["logprobs"][0])
            self.assertGreater(generated, 0)
            prompt = found["segments"][0][:-generated]
            self.assertEqual("".join(prompt), "Licensed under the")


if __name__ == "__main__":
    unittest.main(verbosity=2)
