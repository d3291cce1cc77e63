"""Define the modes of requests that run in the process of the calling Python program."""

from fastcni.kit.call.mode import Mode


class InProcessMode(Mode):
    """The mode of one request. It calls fastcni's own delegates as functions, so CNI_PATH needs no plugin files."""

    __slots__ = ()

    def find_plugin(self, name: str, directories: list[str], own: bool) -> str:
        return "" if own else super().find_plugin(name, directories, own)


class SharedMode(InProcessMode):
    """The mode of many requests that one thread runs, one after another, in one network namespace. Netlink sockets stay
    open until close()."""

    __slots__ = ()

    def end_request(self) -> None:
        return
