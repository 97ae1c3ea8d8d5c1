"""`coil COMMAND`: loads the module of a command; turns errors into one line, a remedy and an exit status."""

from __future__ import annotations

import _thread
import contextlib
import errno
import faulthandler
import importlib
import io
import os
import signal
import sys
import threading
from typing import Any

import click

from coil import __version__
from coil.errors import SET_ON_DUPLICATE, CoilError, DuplicateId

VERBS = {
    "add": "Add documents to an index.",
    "compact": "Rewrite an index without its deleted documents.",
    "delete": "Delete documents from an index.",
    "explain": "Show why a document matches a query.",
    "index": "Build an index from a corpus.",
    "inspect": "Show the contents of an index.",
    "rerank": "Rerank another system's candidates.",
    "search": "Search an index.",
    "serve": "Serve indexes over HTTP, with a search page.",
    "verify": "Check an index for damage.",
    "compare": "Compare retrieval systems on a test collection.",
    "bench": "Measure search speed on this machine.",
    "demo": "Search the documentation of Python's standard library.",
    "doctor": "Check this installation.",
    "evaluate": "Evaluate runs against relevance judgements.",
    "export": "Export a trained model to ONNX.",
    "export-vectors": "Export an index with n_t = 1 to Anserini's JSON vectors.",
    "import-checkpoint": "Convert a checkpoint of the authors' COIL to a model folder.",
    "import-encoded": "Build an index from texts encoded by the authors' COIL.",
    "mcp": "Serve an index to an assistant (MCP).",
    "mine": "Find hard negatives for training pairs.",
    "train": "Train a COIL model on query–passage pairs.",
}


class Verbs(click.Group):
    """Loads the module of a command only when it is used, so that `coil --help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"coil.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="coil")
def cli() -> None:
    """Search with contextualized inverted lists: exact, explainable, fast on a laptop.

    Results go to standard output, everything else to standard error. `coil COMMAND --help` explains a
    command.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Exit status: 0 success, 1 failure, 2 usage, 130 interrupted, 143 terminated."""
    _prepare_streams()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error may be closed
        faulthandler.enable()  # a fatal signal, such as SIGBUS from a truncated mapped file, leaves a message
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _interrupt_again
    _allow_many_files()
    status = run(arguments)
    # The command has ended and said so. Another Ctrl-C while Python shuts down would only abort libraries.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def _allow_many_files() -> None:
    """Raise the limit on open files as far as the system allows: a segment takes three, a connection one."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 16
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, 1 << 16)), hard))


def _prepare_streams() -> None:
    """Handle streams that are closed or full: failing to write results is an error, failing to write messages
    is not."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # otherwise the next opened file would get this number and receive the output
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    sys.stderr = _Notes(sys.stderr)


class _ClosedOutput(io.TextIOBase):
    """Closed standard output: a command that writes to it fails."""

    encoding, errors = "utf-8", "replace"

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed")


class _Notes:
    """Standard error. Messages that cannot be written are dropped; the command still succeeds."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Terminated(KeyboardInterrupt):
    """SIGTERM: handled like Ctrl-C, so that finished work is kept."""


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Python discards an exception in a destructor. Ctrl-C and SIGTERM are raised again a moment later, when
    another step is running."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    number = signal.SIGTERM if issubclass(lost.exc_type, Terminated) else signal.SIGINT
    again = threading.Timer(0.05, _thread.interrupt_main, [number])
    again.daemon = True
    again.start()


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status.

    The argument of a KeyboardInterrupt, if a command has set it, says what was kept and how to continue.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # replace characters that the console cannot show
            stream.reconfigure(errors="replace")
    try:
        status = cli.main(args=arguments, prog_name="coil", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        error.show()
        return 2
    except CoilError as error:
        if isinstance(error, DuplicateId):  # its remedy names the Python argument; name the option instead
            error.remedy = error.remedy.replace(SET_ON_DUPLICATE, "set --on-duplicate to update or skip")
        click.echo(f"coil: {error}", err=True)
        return 1
    except (KeyboardInterrupt, click.Abort) as error:
        stopped = error.__cause__ or error  # click turns it into an Abort
        is_terminated = isinstance(stopped, Terminated)
        what = "terminated (SIGTERM)" if is_terminated else "interrupted"
        click.echo("; ".join(filter(None, [f"coil: {what}", str(stopped)])), err=True)
        return 143 if is_terminated else 130
    except BrokenPipeError:  # the reader of our output has exited, as in `coil ... | head`
        with contextlib.suppress(AttributeError):
            sys.stderr.close()
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"coil: {where}{error.strerror or error}", err=True)
        return 1
    except MemoryError:
        click.echo(
            "coil: out of memory\n  try: free some memory, or raise the limit of this process", err=True
        )
        return 1
    except ImportError as error:  # a missing extra is a CoilError
        reason = (str(error).strip().splitlines() or ["unknown reason"])[-1]
        told = f"coil: {error.name or 'a library'} cannot be loaded: {reason}"
        click.echo(f"{told}\n  try: reinstall it, or free some memory", err=True)
        return 1


if __name__ == "__main__":
    main()
