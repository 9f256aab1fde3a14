"""A headless Chromium, driven over a pipe by the Chrome DevTools protocol."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

from runs import PATIENCE

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")


def find():
    """The browser's path, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One page of a new browser; a context manager."""

    def __init__(self, path, url, profile):
        to_read, self.to_write = os.pipe()
        self.to_read, to_write = os.pipe()
        # The protocol's messages come on the browser's descriptors 3 and 4.
        ends = [to_read, to_write]
        to_read, to_write = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in ends)
        for end in ends:
            os.close(end)
        command = f'exec 3<&{to_read} 4>&{to_write} {to_read}<&- {to_write}>&-; exec "$@"'
        self.browser = subprocess.Popen(
            ["bash", "-c", command, "bash", path, "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--remote-debugging-pipe",
             "--window-size=900,900", "about:blank"],
            pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.received, self.number, self.session, self.errors = b"", 0, None, []
        target = self.call("Target.createTarget", url=url)["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.browser.terminate()
        self.browser.wait(20)
        os.close(self.to_write)
        os.close(self.to_read)

    def receive(self, end):
        while b"\0" not in self.received:
            if not select.select([self.to_read], [], [], max(end - time.monotonic(), 0))[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self.to_read, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self.received += part
        message, self.received = self.received.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while True:
            answer = self.receive(end)
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(answer["params"]["exceptionDetails"])
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError((method, answer["error"]))
                return answer["result"]

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                          awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def wait(self, expression, seconds=PATIENCE):
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > end:
                raise TimeoutError(expression)
            time.sleep(0.05)

    def screenshot(self, file):
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
