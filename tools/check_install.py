"""Check an installation from outside the repository: native core, bundled model, search, command line.

    python tools/check_install.py

It imports only what the base installation has, so it can test a wheel in an empty environment.
"""

import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Search, explain and run the demo, as a new user would."""
    import coil._native

    import coil

    assert "site-packages" in coil.__file__, (
        f"coil is imported from {coil.__file__}, not from an installation"
    )
    with tempfile.TemporaryDirectory() as folder:
        with coil.create(Path(folder) / "check.coil") as index:
            index.add(
                [
                    {"id": "river", "text": "The bank of the river was steep."},
                    {"id": "money", "text": "The bank raised its interest rates."},
                ]
            )
            hits = index.search("steep banks of a river", k=2)
            assert [hit.doc_id for hit in hits] == ["river", "money"], hits
            assert index.explain("steep banks of a river", "river").matches
        for arguments in (["doctor"], ["demo", "--question", "find all matches of a regular expression"]):
            done = subprocess.run(
                [sys.executable, "-m", "coil", *arguments],
                capture_output=True,
                encoding="utf-8",
                cwd=folder,
                check=False,
            )
            print(done.stdout)
            assert done.returncode == 0, done.stderr
    sets = coil._native.instruction_sets()
    print(f"coil {coil.__version__}, Python {sys.version.split()[0]}, instruction sets: {', '.join(sets)}")


if __name__ == "__main__":
    main()
