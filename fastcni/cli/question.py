"""Define commands whose exit status is an answer."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

import click

from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Callable

UNKNOWN = 2                     # the exit status without an answer


class Question(click.Command):
    """A command whose exit statuses are answers. Its errors have the exit status UNKNOWN."""

    def make_context(self, *args: Any, **keys: Any) -> click.Context:
        return self._failing(super().make_context, *args, **keys)

    def invoke(self, ctx: click.Context) -> Any:
        return self._failing(super().invoke, ctx)

    def _failing(self, do: Callable[..., Any], *args: Any, **keys: Any) -> Any:
        try:
            return do(*args, **keys)
        except click.exceptions.Exit:           # of --help
            raise
        except (CniError, OSError, click.ClickException, click.Abort) as e:
            e.exit_status = UNKNOWN             # type: ignore[union-attr]
            raise
        except Exception:                       # otherwise Python would end with status 1
            traceback.print_exc()
            sys.exit(UNKNOWN)
