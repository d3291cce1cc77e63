"""The server encodes results in the same way with and without orjson."""

import json

import pytest

from fastcni.server.requests import mode

RESULT = {"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.2/24"}], "dns": {}}
ODD = {**RESULT, "dns": {"domain": "\udcff"}}           # orjson refuses this lone surrogate


@pytest.mark.parametrize("with_orjson", [True, False])
@pytest.mark.parametrize("result", [RESULT, ODD], ids=["plain", "lone surrogate"])
def test_a_result_is_the_same_document_with_orjson_and_without(monkeypatch, result, with_orjson):
    if not with_orjson:
        monkeypatch.setattr(mode, "orjson", None)
    assert json.loads(mode.WarmMode.encode(mode.WarmMode.__new__(mode.WarmMode), result)) == json.loads(
        mode.results.encode(result))
