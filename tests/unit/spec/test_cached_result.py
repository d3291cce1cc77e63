"""Base64 without the module binascii, for libcni's cache files."""

from base64 import b64encode
from random import Random

import pytest

from fastcni.spec.cached_result import from_base64, to_base64


@pytest.mark.parametrize("size", [*range(70), 1000, 70_001])
def test_base64_is_that_of_the_standard_library(size):
    for data in (bytes(size), b"\xff" * size, Random(size).randbytes(size)):
        assert to_base64(data) == b64encode(data).decode()
        assert from_base64(to_base64(data)) == data


@pytest.mark.parametrize("text", ["=", "A", "A=", "AA", "AAA", "A===", "AA=A", "====", "AAAAA===", "AA==AA==", "AAAA=",
                                  "=AAA", "%%%%", "AAA\n", "AA A", "AA-_", "\xc4AAA", "\xc4\xc4AA", "\ud800AAA"])
def test_other_texts_are_no_base64(text):
    with pytest.raises(ValueError, match="not base64"):
        from_base64(text)
