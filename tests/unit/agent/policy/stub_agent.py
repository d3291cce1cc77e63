"""An agent that only records the requests of the plugin `policy`. It writes no nftables table."""

import json
import select
import threading
from pathlib import Path

from fastcni.agent.policy.requests import Requests


class StubAgent:
    """The agent's socket, served by a thread. directory(): where the files of attachments are. refuse: the answer to
    each request, if not None."""

    def __init__(self, path, directory):
        self.path, self.directory, self.refuse, self.asked = path, directory, None, []
        self.ended = threading.Event()

    def __enter__(self):
        self.requests = Requests(self.path, self.answer)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self.requests.close()

    def _run(self):
        while not self.ended.is_set():
            select.select([self.requests], [], [], 0.05)
            self.requests.attend()

    def answer(self, request, waited):
        self.asked.append(request)
        if self.refuse is not None:
            return self.refuse
        directory = Path(self.directory(), "policies")
        directory.mkdir(parents=True, exist_ok=True)
        if request["do"] == "collect":
            return {"released": [self._remove(path) for path in sorted(directory.iterdir())
                                 if path.name.split("@")[2:] not in request["valid"]]}
        # a FakeRuntime counts files whose name begins with a digit
        file = directory / "@".join(("0", *request.get("id", ())))
        if request["do"] == "protect":
            file.write_text(json.dumps(request["addresses"]))
        elif request["do"] == "forget":
            file.unlink(missing_ok=True)
        elif request["do"] == "check" and not (
                file.exists() and json.loads(file.read_text()) == request["addresses"]):
            return {"error": "it is not protected"}
        return {}

    def _remove(self, path):
        path.unlink()
        return f"policies of {path.name}"
