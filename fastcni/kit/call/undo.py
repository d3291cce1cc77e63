"""Roll back a failed ADD, and run all steps of a DEL even if one step fails."""

from __future__ import annotations

from fastcni._abandoned import Abandoned
from fastcni.kernel.waiting import here, rolling_back
from fastcni.kernel.wire import AnswerLost, NetlinkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Step = tuple[Callable[..., object], tuple[Any, ...]]


class Undo:
    """The rollback of an ADD. Call `undo(fn, *args)` next to the step that it rolls back. On an exception the steps run
    in reverse order.

    ADD fails with the first error, to which Undo adds the errors of the rollback as notes.
    """

    __slots__ = ("steps", "failed")

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.failed = False             # whether a step of the rollback has failed

    def __call__(self, fn: Callable[..., object], *args: Any) -> None:
        self.steps.append((fn, args))

    def unless_failed(self, fn: Callable[..., object], *args: Any) -> None:
        """Like undo(fn, *args), but skip the step if an earlier step of the rollback has failed. Use unless_failed() to
        remove a file that tells a later DEL what to delete."""
        self.steps.append((self._run_unless_failed, (fn, args)))

    def _run_unless_failed(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.failed:
            fn(*args)

    def request(self, fn: Callable[..., object], *args: Any) -> Requested:
        """`with undo.request(fn, *args): wire.exchange(...)`: the rollback calls fn(*args), unless the kernel answers
        the request with an error.

        After an error the kernel has not made the link, so a link of that name belongs to another program. If the
        answer is lost, the kernel may have made the link, so the rollback deletes it.
        """
        self.steps.append((fn, args))
        return Requested(self.steps)

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if kind is None or kind is Abandoned:
            return
        here.request.step("rollback")
        with rolling_back():
            for fn, args in reversed(self.steps):
                try:
                    fn(*args)
                except (Exception, SystemExit) as e:
                    self.failed = True
                    error.add_note(f"while undoing: {e}")


class Requested:
    """A context manager that removes the last rollback from `steps` if the kernel answers the request with an error."""

    __slots__ = ("steps",)

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps

    def __enter__(self) -> Requested:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if isinstance(error, NetlinkError) and not isinstance(error, AnswerLost):
            self.steps.pop()


def every(*steps: tuple[Any, ...]) -> None:
    """Call fn(*args) of each step (fn, *args), even after an error. Then raise the first error, with the other errors
    as notes."""
    errors: list[BaseException] = []
    for fn, *args in steps:
        try:
            fn(*args)
        except (Exception, SystemExit) as e:
            if errors:
                errors[0].add_note(f"and: {e}")
            else:
                errors.append(e)
    if errors:
        raise errors.pop()              # the list must not keep the error, see wire.raise_first()


def steps_of(options: Iterable[object], command: str, *args: Any) -> list[tuple[Any, ...]]:
    """Return the steps for every() that call the function named `command` of each option; skip options without that
    function. See kit/call/option.py."""
    return [(function, *args) for option in options if (function := getattr(option, command, None))]
