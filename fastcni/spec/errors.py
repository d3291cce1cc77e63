"""CNI errors: the spec's codes as names, and the exception that carries them (CNI spec 1.1.0, section 5)."""

from errno import EMFILE, ENFILE, ENOMEM

INCOMPATIBLE_VERSION = 1
UNSUPPORTED_FIELD = 2
UNKNOWN_CONTAINER = 3
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODING_FAILURE = 6
INVALID_CONFIG = 7
INVALID_NETNS = 8               # not in the spec's table; the reference library's
TRY_AGAIN_LATER = 11
PLUGIN_NOT_AVAILABLE = 50
LIMITED_CONNECTIVITY = 51
INTERNAL = 999                  # the reference library's, for what has no code of its own

EXHAUSTED = (ENOMEM, ENFILE, EMFILE)        # it may work later


def of_errno(number):
    """The code for a file that the kernel does not let us read."""
    return TRY_AGAIN_LATER if number in EXHAUSTED else IO_FAILURE


class CniError(Exception):
    """What a runtime is told: `code`, `msg` in one sentence, `details` that say why and what to look at."""

    def __init__(self, code, msg, details=""):
        super().__init__(code, msg, details)
        self.code, self.msg, self.details = code, msg, details

    def __str__(self):
        return f"{self.msg}; {self.details}" if self.details else self.msg

    def as_document(self):
        """{"code", "msg"} and, where there are any, "details"."""
        document = {"code": self.code, "msg": self.msg}
        if self.details:
            document["details"] = self.details
        return document
