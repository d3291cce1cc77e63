"""Control the terminal of a live view: read single keys, use the alternate screen, and restore the terminal also after
an error or a signal."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleDimensions, RenderableType

ENDS = (signal.SIGTERM, signal.SIGHUP)
WAKES = (signal.SIGWINCH, signal.SIGTSTP)
SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|O.)")        # the bytes of a key such as an arrow key
MAX_BYTES = 1024                # limit of one read of the terminal
ESCAPE, ENTER, ERASE = "escape", "enter", "erase"
NAMES = {"\x1b": ESCAPE, "\r": ENTER, "\n": ENTER, "\x7f": ERASE, "\b": ERASE}


class Terminal:
    """A terminal with a live view. `with Terminal(console) as terminal:` shows the alternate screen; the body calls
    draw() and wait() in turn. Only the main thread may use a Terminal.

    SIGTERM and SIGHUP raise SystemExit in the body, SIGINT raises KeyboardInterrupt. SIGTSTP (Ctrl-Z) suspends the
    process.
    """

    def __init__(self, console: Console) -> None:
        self.console, self.fd = console, sys.stdin.fileno()
        self.suspended = False
        self.former: dict[int, Any] = {}

    def __enter__(self) -> Terminal:
        self.before = termios.tcgetattr(self.fd)
        self.read_end, self.write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.former_wakeup = signal.set_wakeup_fd(self.write_end, warn_on_full_buffer=False)
        try:
            for number, handler in [*((it, self._end) for it in ENDS), *((it, self._wake) for it in WAKES)]:
                self.former[number] = signal.signal(number, handler)
            self._show()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self._hide()
        finally:
            for number, handler in self.former.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self.former_wakeup)
            os.close(self.read_end)
            os.close(self.write_end)

    def _show(self) -> None:
        tty.setcbreak(self.fd, termios.TCSADRAIN)
        self.console.set_alt_screen(True)
        self.console.show_cursor(False)

    def _hide(self) -> None:
        try:
            with suppress(OSError):     # the terminal was closed
                self.console.show_cursor(True)
                self.console.set_alt_screen(False)
        finally:
            with suppress(termios.error):
                termios.tcsetattr(self.fd, termios.TCSADRAIN, self.before)

    def _end(self, number: int, _: object) -> None:
        raise SystemExit(128 + number)

    def _wake(self, number: int, _: object) -> None:
        self.suspended = self.suspended or number == signal.SIGTSTP

    def _suspend(self) -> None:
        """Restore the terminal and stop this process. When the shell continues the process, show the view again."""
        self.suspended = False
        self._hide()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._wake)
        self._show()

    def draw(self, view: Callable[[int, int], RenderableType]) -> None:
        """Draw the text that view(columns, lines) returns for the terminal's present size."""
        # Set console.size: without that, rich uses COLUMNS and LINES, which do not change with the terminal.
        columns, lines = self.console.size = ConsoleDimensions(*os.get_terminal_size(self.fd))
        with self.console.capture() as drawn:
            self.console.print(view(columns, lines), end="")
        # Overwrite each line, then clear the rest of the line and of the screen. So nothing flickers, and no old text
        # stays.
        text = "".join(f"\x1b[{at};1H{line}\x1b[K" for at, line in enumerate(drawn.get().split("\n")[:lines], 1))
        self.console.file.write(f"{text}\x1b[J")
        self.console.file.flush()

    def wait(self, seconds: float) -> list[str]:
        """Wait up to `seconds` for a key. Return the pressed keys: characters, or ESCAPE, ENTER, ERASE. [] after the
        time or a signal."""
        ready, _, _ = select.select([self.fd, self.read_end], [], [], max(0.0, seconds))
        if self.read_end in ready:
            os.read(self.read_end, MAX_BYTES)
        if self.suspended:
            self._suspend()
            return []
        if self.fd not in ready:
            return []
        data = os.read(self.fd, MAX_BYTES)
        if not data:                    # the terminal was closed
            raise SystemExit(128 + signal.SIGHUP)
        text = SEQUENCE.sub("", data.decode("utf-8", "ignore"))
        return [NAMES.get(key, key) for key in text if key in NAMES or key.isprintable()]
