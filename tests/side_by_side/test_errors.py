"""Bad input to both: one error document each, with the same text, the code of the spec, and nothing changed by ours."""

import json
import os
import re

import pytest
from side_by_side.bad_input import BAD
from side_by_side.sides import Inside, both, run
from side_by_side.state import difference, state_of


class Try:
    """A bad request on one side."""

    def __init__(self, side, bad):
        self.side, self.bad, self.pod = side, bad, side.pod()
        for command in bad.before:
            if command == "fill":
                side.ok("ADD", {key: value for key, value in bad.conf.items() if key != "runtimeConfig"},
                        self.pod, cid="first")
            elif command.startswith("pod:"):
                with Inside(os.path.basename(self.pod)):
                    run(*command[4:].split())
            else:
                side.on_host(*command.split())
        if bad.twice:
            side.add(bad.conf, self.pod)

    def state(self):
        return {**state_of(self.side, self.pod), **self.side.held("net-a")}

    def call(self):
        bad = self.bad
        answer = self.side.call(bad.command, bad.conf, self.pod, plugin=bad.plugin, **bad.variables)
        assert answer.status == 1, str(answer)
        return answer

    def plain(self, answer):
        """(msg, details) with one word for what is this side's own."""
        document = answer.document
        assert set(document) <= {"code", "msg", "details"}
        words = {self.side.folder: "<folder>", self.side.bin_dir: "<plugins>", self.pod: "<pod>"}
        pattern = re.compile("|".join(map(re.escape, words)))
        text = json.dumps([document["msg"], document.get("details", "")])
        text = re.sub("veth[0-9a-f]{8}", "<host end>", pattern.sub(lambda found: words[found[0]], text))
        return document["code"], *json.loads(text)
