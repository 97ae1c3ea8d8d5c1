"""`coil serve`: where a server listens, under which names it is reached, and its limits in fractions."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import click
import pytest

from coil.cli import serve
from coil.cli.main import VERBS, cli, run
from coil.cli.numbers import FiniteRange
from coil.errors import OutputError
from coil.service import server
from coil.service.limits import ServiceOptions
from coil.service.service import Service
from tests.hash_encoder import HashEncoder
from tests.test_service import build

LOOPBACK = ["127.0.0.1", "localhost", "LOCALHOST", "127.1", "0x7f.1", "127.0.0.2", "my-machine"]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as opened:
            opened.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function: the host names that a server accepts; `my-machine` is a name of 127.0.0.1."""
    folder = build(tmp_path / "notes.coil", 3)
    found: list[tuple[str, ...]] = []
    resolve = socket.getaddrinfo

    def started(service: Service, listening: socket.socket, _: object) -> None:
        found.append(service.options.hosts)
        listening.close()
        service.stop()

    def resolved(host: str, *given: Any, **more: Any) -> Any:
        return resolve("127.0.0.1" if host == "my-machine" else host, *given, **more)

    monkeypatch.setattr(server, "run_server", started)
    monkeypatch.setattr(socket, "getaddrinfo", resolved)

    def ask(host: str) -> tuple[str, ...]:
        serve.serve([folder], host, 0, ServiceOptions(), HashEncoder())
        return found.pop()

    return ask


@pytest.mark.parametrize("host", LOOPBACK)
def test_every_spelling_of_loopback_accepts_only_its_own_names(hosts: Any, host: str) -> None:
    accepted = hosts(host)
    assert {"localhost", "127.0.0.1", "[::1]", host.lower()} <= set(accepted)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(("host", "own"), [("::1", "[::1]"), ("::ffff:127.0.0.1", "[::ffff:127.0.0.1]")])
def test_loopback_of_ipv6_accepts_only_its_own_names(hosts: Any, host: str, own: str) -> None:
    assert {"localhost", own} <= set(hosts(host))


def test_other_addresses_accept_every_name(hosts: Any) -> None:
    assert hosts("0.0.0.0") == ()


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example", "nowhere.invalid"])
def test_a_host_that_cannot_be_resolved_is_told(hosts: Any, host: str) -> None:
    with pytest.raises(OutputError, match=re.escape(f"cannot listen on {host}, port 0: ")):
        hosts(host)


FRACTIONS = [("serve", "notes.coil", "--max-seconds"), ("index", "notes.jsonl", "--gpus-per-actor")]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("command", FRACTIONS, ids=lambda command: command[0])
def test_no_limit_is_nan_or_infinite(
    command: tuple[str, ...], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, value]) == 2
    assert f"Invalid value for '{command[-1]}'" in capsys.readouterr().err


def test_every_number_with_a_fraction_is_finite() -> None:
    """Options without a range are checked where they are used, such as `--min-score`."""
    kinds = [
        type(option.type)
        for name in VERBS
        for option in cli.get_command(click.Context(cli), name).params  # type: ignore[union-attr]
    ]
    assert FiniteRange in kinds
    assert click.FloatRange not in kinds
