"""The modes of requests that a Python program makes in its own process."""

from fastcni.kit.call.mode import Mode


class InProcessMode(Mode):
    """One request. fastcni's delegates are called as functions: there need be no plugin files in CNI_PATH."""

    __slots__ = ()

    def find_plugin(self, name: str, folders: list[str], own: bool) -> str:
        return "" if own else super().find_plugin(name, folders, own)


class SharedMode(InProcessMode):
    """Many requests of one thread, one after another, from one namespace. The sockets stay open until close()."""

    __slots__ = ()

    def end_request(self) -> None:
        return
