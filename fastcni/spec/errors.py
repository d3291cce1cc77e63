"""Name the spec's error codes, and define the exceptions that carry them (CNI spec 1.1.0, section 5)."""

from __future__ import annotations

from errno import EMFILE, ENFILE, ENOMEM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INCOMPATIBLE_VERSION = 1
UNSUPPORTED_FIELD = 2
UNKNOWN_CONTAINER = 3
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODING_FAILURE = 6
INVALID_CONFIG = 7
INVALID_NETNS = 8               # a code of the reference library, not of the spec
TRY_AGAIN_LATER = 11
PLUGIN_NOT_AVAILABLE = 50
LIMITED_CONNECTIVITY = 51
INTERNAL = 999                  # the reference library's code for errors without another code

# a member of an error document: the index of the failed plugin in a chain, see NestedError
FAILED_AT = "fastcni/failed-at"

EXHAUSTED = (ENOMEM, ENFILE, EMFILE)        # errnos of a request that may succeed later


def of_errno(number: int) -> int:
    """Return the error code for a file that cannot be read. number: the errno of the attempt."""
    return TRY_AGAIN_LATER if number in EXHAUSTED else IO_FAILURE


class CniError(Exception):
    """An error for the runtime.

    code        one of the codes above, or a plugin's own code, 100 or more
    msg         one sentence: what failed
    details     why, and what to check; may be ""
    failed_at   the index of the failed plugin in a chain, for fastcni's runtime; None: unknown
    """

    failed_at: int | None = None

    def __init__(self, code: int, msg: str, details: str = "") -> None:
        super().__init__(code, msg, details)
        self.code, self.msg, self.details = code, msg, details

    def __str__(self) -> str:
        return f"{self.msg}; {self.details}" if self.details else self.msg

    def as_document(self) -> dict[str, Any]:
        """Return {"code", "msg"}, and "details" unless empty."""
        document: dict[str, Any] = {"code": self.code, "msg": self.msg}
        if self.details:
            document["details"] = self.details
        return document


def bad_config(msg: str, details: str = "") -> CniError:
    """Return the CniError 7 for a configuration that the plugin cannot use."""
    return CniError(INVALID_CONFIG, msg, details)


class NestedError(Exception):
    """A plugin of a chain failed. The attribute `__cause__` is the plugin's error.

    kind: the plugin's type. index: the plugin's index in the chain. doing: the command, such as "add". bare: whether
    the error document has the plugin's error unchanged and the index as FAILED_AT, for fastcni's runtime. Otherwise the
    text names the plugin.
    """

    def __init__(self, kind: str, index: int, doing: str, bare: bool) -> None:
        super().__init__(kind, index, doing)
        self.kind, self.index, self.doing, self.bare = kind, index, doing, bare

    @property
    def prefix(self) -> str:
        """Return the text in front of the plugin's own text, "" if bare."""
        return "" if self.bare else f'plugin type="{self.kind}" (index {self.index}) failed ({self.doing}): '

    def __str__(self) -> str:
        return f"{self.prefix}{self.__cause__}"
