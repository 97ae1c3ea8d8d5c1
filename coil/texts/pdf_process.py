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
from typing import Any


def main(page_seconds: float) -> None:
    """Read one file; after this long without a page, the process ends, even if its parent is gone."""
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

        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            answer(failure="encrypted")
            return
        for page in reader.pages:
            answer(page=page.extract_text().strip())
        title = reader.metadata.title if reader.metadata is not None else None
        answer(title=title.strip() if isinstance(title, str) else "")
    except MemoryError:
        answer(failure="memory")
    except BrokenPipeError:  # the parent has stopped reading
        os._exit(1)
    except Exception as error:  # a damaged file may raise anything
        answer(failure="damaged", reason=next(iter(str(error).splitlines()), "") or type(error).__name__)


if __name__ == "__main__":
    sys.path[:] = sys.argv[2:]
    main(float(sys.argv[1]))
