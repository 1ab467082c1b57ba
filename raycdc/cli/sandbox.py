"""``raycdc sandbox``: runs a private server with a small sample shop, until Ctrl-C.

Ports, data and process are removed with the command, however it ends (`raycdc.sandbox.servers.guard`).
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from raycdc.errors import ConfigError, ExitCode, SourceError
from raycdc.plugins import did_you_mean

if TYPE_CHECKING:
    from raycdc.sandbox.trials import SandboxServer

#: Seconds between two transactions of ``--live``.
_PAUSE_S = 0.2
_ORDERS = 2_000


def print_kinds() -> int:
    """Print the kinds of sandbox servers."""
    from raycdc.sandbox.trials import KINDS

    width = max(map(len, KINDS))
    for name, kind in KINDS.items():
        print(f"{name:{width}}  {kind.summary}")
    print("\nStart one with, for example:  raycdc sandbox mariadb")
    return int(ExitCode.DONE)


def serve(kind: str, *, port: int | None, empty: bool, live: bool) -> int:
    """Start the server, print its address and the next commands to type, and wait for Ctrl-C or SIGTERM."""
    from raycdc.sandbox.servers import ServerError
    from raycdc.sandbox.shop import ShopSize
    from raycdc.sandbox.trials import KINDS, SandboxSourceServer, new_trial
    from raycdc.spark.artifacts import ArtifactError

    if kind not in KINDS:
        raise ConfigError(
            f'"{kind}" is no sandbox server{did_you_mean(kind, KINDS) or "."} There are {", ".join(KINDS)}.'
        )
    #: The handler appends to a list, which takes no lock: it may interrupt a thread that holds one.
    signals: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        trial = new_trial(kind, port=port, standard=True)
        print(f"Starting {kind} (a machine's first one is fetched, which takes minutes) …", flush=True)
        with trial:
            filled = isinstance(trial, SandboxSourceServer) and not empty
            if isinstance(trial, SandboxSourceServer) and filled:
                trial.fill(ShopSize(customers=200, products=100, orders=_ORDERS))
            for number in before:
                signal.signal(number, lambda received, _frame: signals.append(received))
            print("\n".join(_instructions(trial, filled=filled)), flush=True)
            while not signals:
                time.sleep(_PAUSE_S)
                if live and filled and isinstance(trial, SandboxSourceServer):
                    trial.step()
                if not trial.server.running:
                    print(f"{trial.version} has ended by itself.", file=sys.stderr)
                    return int(ExitCode.SOURCE)
        print("The server is stopped, and its data is gone.")
    except (ServerError, ArtifactError) as cause:
        raise SourceError(str(cause)) from cause
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return int(ExitCode.DONE)


def _instructions(trial: SandboxServer, *, filled: bool) -> Iterator[str]:
    from raycdc.sandbox.trials import SandboxSourceServer
    from raycdc.sandbox.trials.trial import COMPARED, DATABASE, python_command, typed

    yield f"{trial.version} is up until Ctrl-C; its data goes with it."
    yield ""
    yield f"  url       {trial.url}"
    for number, account in enumerate(trial.accounts):
        yield f"  {'' if number else 'accounts':8}  {account.name} (password {account.password}) {account.may}"
    if not trial.accounts:
        yield "  accounts  none are needed"
    if filled:
        yield f"  data      {', '.join(f'{DATABASE}.{table}' for table in COMPARED)}"
    if filled:
        yield from ["", "Look at it:", "", *python_command(trial.preview_code(DATABASE, "orders"))]
    if isinstance(trial, SandboxSourceServer):
        yield ""
        yield "As a source, in another terminal:"
        yield ""
        for name, value in trial.environment.items():
            yield f"  export {name}='{value}'"
        yield from typed(["raycdc", "init", "shop.toml", *(trial.init_words if filled else trial.init_words[:-2])])
        yield "  raycdc run shop.toml"
    if trial.as_sink:
        yield from ["", "As a target (together with the options of a source):", ""]
        # Values that may contain a secret are put into the environment variable that `raycdc init` reads.
        if "uri" in trial.as_sink:
            yield f"  export MONGODB_URI='{trial.as_sink['uri']}'"
        if "password" in trial.as_sink:
            yield f"  export JDBC_PASSWORD={trial.accounts[-1].password}"
        keys = {name: value for name, value in trial.as_sink.items() if name not in ("type", "password", "uri")}
        words = [word for name, value in keys.items() for word in ("--answer", f"sink.{name}={value}")]
        yield from typed(["raycdc", "init", "shop.toml", "--sink", trial.as_sink["type"], *words])
    if trial.piece:
        yield ""
        yield "For a configuration:"
        yield ""
        yield from (f"  {line}".rstrip() for line in trial.piece.strip().splitlines())
    yield ""
