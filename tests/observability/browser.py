"""Drive a headless Chromium by the DevTools protocol over two pipes."""

import base64
import json
import os
import select
import shlex
import subprocess
import time

TIMEOUT_S = 40


class Browser:
    """`with Browser(directory) as browser:` starts a browser with a profile in `directory`.

    events: [(method, params)] of the page's requests, console messages and exceptions."""

    def __init__(self, directory):
        self.directory, self.number, self.events, self.rest = directory, 0, [], b""
        self.session = {}

    def __enter__(self):
        commands, self.write = os.pipe()
        self.read, answers = os.pipe()
        # The browser reads commands from descriptor 3, and writes answers to descriptor 4.
        line = shlex.join(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                           "--no-first-run",
                           "--disable-component-update", "--disable-background-networking",
                           "--remote-debugging-pipe", f"--user-data-dir={self.directory}", "about:blank"])
        self.process = subprocess.Popen(["bash", "-c", f"exec {line} 3<&{commands} 4>&{answers}"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0,
                                        pass_fds=(commands, answers))
        os.close(commands)
        os.close(answers)
        (page,) = [it for it in self.ask("Target.getTargets")["targetInfos"] if it["type"] == "page"]
        attached = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.session = {}
        self.ask("Browser.close")
        self.process.wait(TIMEOUT_S)
        os.close(self.read)
        os.close(self.write)

    def _message(self):
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self.rest:
            assert select.select([self.read], [], [], deadline - time.monotonic())[0], "the browser does not answer"
            part = os.read(self.read, 1 << 16)
            assert part, "the browser has ended"
            self.rest += part
        text, _, self.rest = self.rest.partition(b"\0")
        found = json.loads(text)
        if "method" in found:
            self.events.append((found["method"], found["params"]))
        return found

    def ask(self, method, **params):
        self.number += 1
        question = {"id": self.number, "method": method, "params": params, **self.session}
        os.write(self.write, json.dumps(question).encode() + b"\0")
        while (found := self._message()).get("id") != self.number:
            pass
        assert "error" not in found, found
        return found["result"]

    def open(self, page, width, scheme="light"):
        """Open a file or a URL in a window of this width, and wait until the page is loaded."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            self._message()

    def value(self, expression):
        """Return the value of a JavaScript expression in the page."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, height):
        """Return a PNG file, as bytes, with the first `height` pixels of the page."""
        width = self.value("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return base64.b64decode(self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])

    def reported(self, *methods):
        return [params for method, params in self.events if method in methods]
