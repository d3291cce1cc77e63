"""Define Question, a click command whose exit status is an answer."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

import click

from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Callable

UNKNOWN = 2                     # the exit status if there is no answer


class Question(click.Command):
    """A click command whose exit status is an answer. After an error, the exit status is UNKNOWN."""

    def make_context(self, *args: Any, **keys: Any) -> click.Context:
        return self._failing(super().make_context, *args, **keys)

    def invoke(self, ctx: click.Context) -> Any:
        return self._failing(super().invoke, ctx)

    def _failing(self, do: Callable[..., Any], *args: Any, **keys: Any) -> Any:
        try:
            return do(*args, **keys)
        except click.exceptions.Exit:           # --help ends the command by this exception
            raise
        except (CniError, OSError, click.ClickException, click.Abort) as e:
            e.exit_status = UNKNOWN             # type: ignore[union-attr]
            raise
        except Exception:                       # otherwise Python would end with status 1
            traceback.print_exc()
            sys.exit(UNKNOWN)
