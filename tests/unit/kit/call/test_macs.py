"""MAC addresses in the notations that users write."""

import pytest

from fastcni.kit.call.conf import read_mac


@pytest.mark.parametrize("text", ["0a:58:0a:16:00:05", "0A-58-0A-16-00-05", "0a58.0a16.0005"])
def test_a_mac_is_read_in_every_form_go_reads(text):
    assert read_mac(text).hex(":") == "0a:58:0a:16:00:05"


@pytest.mark.parametrize("text", ["", "0a", "0a:58:0a:16:00", "0a:58:0a:16:00:0g", "0a:58:0a:16:00:5", "0a580a160005",
                                  "0a58.0a16.005", "0a:58:0a:16:00:05:01", "::::::", "0a 58 0a 16 00 05"])
def test_what_is_no_mac_is_refused(text):
    with pytest.raises(ValueError, match="invalid MAC address"):
        read_mac(text)
