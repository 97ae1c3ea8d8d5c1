"""The process that reads one PDF: the file arrives on standard input, JSON lines go to standard output.

One line per page, `{"page": "..."}`, then `{"title": "..."}`, or a line with `failure` instead. The script is
started by its path, so it imports only pypdf, from the `sys.path` that it is given.
"""

from __future__ import annotations

import faulthandler
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def _limited(room: int) -> Iterator[None]:
    """Limit the address space to what is used now and `room` bytes, so that more raises a MemoryError.

    Only the soft limit is set, and it is lifted again at the end: telling of the error takes memory as well.
    Without /proc, as outside of Linux, what is used is not known, and nothing is limited.
    """
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    given = [limit for limit in before if limit != resource.RLIM_INFINITY]
    with suppress(OSError, ValueError):  # some systems do not support this limit
        resource.setrlimit(resource.RLIMIT_AS, (min([used + room, *given]), before[1]))
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, before)


def main(page_seconds: float, room: int, longest: int) -> None:
    """Read one file, with `room` bytes of memory and pages of at most `longest` bytes.

    After `page_seconds` without a page, the process ends, even if its parent is gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent reports Ctrl-C
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # keep the output of libraries apart from the answers

    def answer(**value: Any) -> None:
        faulthandler.dump_traceback_later(page_seconds, exit=True)
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    faulthandler.dump_traceback_later(page_seconds, exit=True)
    data = sys.stdin.buffer.read()
    try:
        import pypdf

        with _limited(room):
            reader = pypdf.PdfReader(io.BytesIO(data))
            if reader.is_encrypted and not reader.decrypt(""):
                answer(failure="encrypted")
                return
            for page in reader.pages:
                text = page.extract_text().strip()
                if sys.getsizeof(text) - sys.getsizeof("") > longest:
                    answer(failure="long")  # the parent would have to read the whole line
                    return
                answer(page=text)
            title = reader.metadata.title if reader.metadata is not None else None
            answer(title=title.strip() if isinstance(title, str) else "")
    except MemoryError:
        answer(failure="memory")
    except BrokenPipeError:  # the parent has stopped reading
        os._exit(1)
    except Exception as error:  # a damaged file may raise anything
        answer(failure="damaged", reason=next(iter(str(error).splitlines()), "") or type(error).__name__)


if __name__ == "__main__":
    sys.path[:] = sys.argv[4:]
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
