"""CNI_ARGS as a plugin reads them. Comments such as A2 number the cases."""

import pytest

from fastcni.spec.config import read_args
from fastcni.spec.errors import CniError

REFUSED = [
    ("A1", "FOO=bar;BAZ=q", 'ARGS: unknown args ["FOO=bar" "BAZ=q"]'),
    ("A3", "IgnoreUnknown=yes", 'ARGS: error parsing value of pair "IgnoreUnknown=yes": '
                                'boolean unmarshal error: invalid input yes'),
    ("A4-bare", "a", 'ARGS: invalid pair "a"'),
    ("A4-two", "a=b=c", 'ARGS: invalid pair "a=b=c"'),
    ("A4-end", "IP=1.2.3.4;", 'ARGS: invalid pair ""'),
    ("A5", "ip=10.0.0.1", 'ARGS: unknown args ["ip=10.0.0.1"]'),
]


@pytest.mark.parametrize("text, message", [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_malformed_args_are_refused(text, message):
    with pytest.raises(CniError) as caught:
        read_args(text, ("IP",))
    assert str(caught.value) == message
    assert caught.value.code == 4


def test_ignore_unknown_allows_unknown_args():                                 # A2
    assert "X" not in read_args("IgnoreUnknown=TRUE;X=1", ("IP",))
    assert read_args("X=1;IP=;IgnoreUnknown=1", ("IP",))["IP"] == ""
