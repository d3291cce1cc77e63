"""Where the command line begins and ends: arguments in, exit status out, errors in words or as a document."""

import os
import sys
from collections.abc import Sequence

import click

from fastcni.cli.commands import cli
from fastcni.cli.show import printable
from fastcni.runtime import PluginError
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError

# What to look at, by a part of the error's text.
HINTS = (
    ("no net configurations found", "put a .conflist file there, or name another directory with --conf-dir "
                                    "or NETCONFPATH"),
    ("broken files were skipped", "the network may be in one of them; the warnings say what is wrong there"),
    ("no net configuration with name", 'the name is the "name" in the file, not the name of the file'),
    ("no paths provided", "say where the plugins are with --bin-dir or CNI_PATH"),
    ("failed to find plugin", "fastcni install --bin-dir DIR writes fastcni's own plugins to a directory"),
    ("permission denied", "most of this needs root"),
    ("operation not permitted", "most of this needs root"),
)


def run(argv: Sequence[str]) -> int:
    """Run one command; return the exit status, 1 for every kind of failure."""
    as_json = "--json" in argv
    try:
        return cli.main(args=list(argv), prog_name="fastcni", standalone_mode=False) or 0
    except click.UsageError as e:
        if not as_json and e.ctx is not None:
            click.echo(e.ctx.get_usage(), err=True)
        return report(CniError(errors.INVALID_ENVIRONMENT, e.format_message()), as_json)
    except CniError as e:
        return report(e, as_json)
    except BrokenPipeError:
        # Nobody reads any more; keep the interpreter from trying once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as e:
        return report(CniError(errors.IO_FAILURE, str(e)), as_json)
    except (click.Abort, KeyboardInterrupt):
        return report(CniError(errors.INTERNAL, "aborted"), as_json)


def report(error: CniError, as_json: bool) -> int:
    """Say what went wrong, once: on stderr, or as the error document on stdout."""
    if as_json:
        click.echo(json.write(error.as_document(), indent=4), nl=sys.stdout.isatty())
        return 1
    lines = [f"Error: {error}", *getattr(error, "__notes__", ())]
    if isinstance(error, PluginError) and error.done:
        lines.append(f"Called before it, with success: {', '.join(plugin.type for plugin in error.done)}")
    lines += [f"Hint: {hint}" for part, hint in HINTS if part in str(error).lower()][:1]
    for line in lines:
        click.echo(printable(line), err=True)
    return 1
