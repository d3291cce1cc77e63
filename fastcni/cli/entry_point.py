"""The command line's entry point: run one command and report its error, as text or as a JSON document."""

import os
import sys
from collections.abc import Sequence

import click

from fastcni.cli.commands import cli
from fastcni.cli.text.output import printable
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError

# (a part of an error's text in lower case, what the user should check)
HINTS = (
    ("no net configurations found", "put a .conflist file there, or set another directory with --conf-dir "
                                    "or NETCONFPATH"),
    ("broken files were skipped", "one of these files may define the network; the warnings name the mistakes"),
    ("no net configuration with name", 'NET is the "name" inside the file, not the name of the file'),
    ("failed to find plugin", "fastcni install --bin-dir DIR writes fastcni's own plugins to a directory"),
    ("permission denied", "run the command as root"),
    ("operation not permitted", "run the command as root"),
)


def run(argv: Sequence[str]) -> int:
    """Run one command and return the exit status. For most commands, 1 stands for any failure.

    In a command whose status 1 is an answer, run() returns the attribute `exit_status` of the error.
    """
    as_json = "--json" in argv
    try:
        return cli.main(args=list(argv), prog_name="fastcni", standalone_mode=False) or 0
    except click.UsageError as e:
        if not as_json and e.ctx is not None:
            click.echo(e.ctx.get_usage(), err=True)
        return report(CniError(errors.INVALID_ENVIRONMENT, e.format_message()), as_json, status_of(e))
    except CniError as e:
        return report(e, as_json, status_of(e))
    except BrokenPipeError as e:
        drop_stdout()                       # the process that read stdout has ended
        return status_of(e)
    except OSError as e:
        return report(CniError(errors.IO_FAILURE, str(e)), as_json, status_of(e))
    except (click.Abort, KeyboardInterrupt) as e:
        return report(CniError(errors.INTERNAL, "aborted"), as_json, status_of(e))


def status_of(error: BaseException) -> int:
    return getattr(error, "exit_status", 1)


def drop_stdout() -> None:
    """Connect stdout to /dev/null. Otherwise Python would flush stdout once more at exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(error: CniError, as_json: bool, status: int = 1) -> int:
    """Print the error once: as text on stderr, or as the error document on stdout. Return the exit status.

    If stdout cannot be written, because its disk is full or its reader has ended, the text is on stderr.
    """
    if as_json:
        try:
            click.echo(json.write(error.as_document(), indent=4), nl=sys.stdout.isatty())
            return status
        except OSError:
            drop_stdout()
    lines = [f"Error: {error}", *getattr(error, "__notes__", ())]
    if done := getattr(error, "done", ()):          # a PluginError; an import of that class would delay --help
        lines.append(f"Called before with success: {', '.join(plugin.type for plugin in done)}")

    lines += [f"Hint: {hint}" for part, hint in HINTS if part in str(error).lower()][:1]
    for line in lines:
        click.echo(printable(line), err=True)
    return status
