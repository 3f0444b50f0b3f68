# SPDX-License-Identifier: BSD-3-Clause
"""`shmcoll export`: metrics of all groups for Prometheus, as a file or over HTTP."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from shmcoll.watch import metrics, text
from shmcoll.watch.board import Watcher, printable
from shmcoll.watch.parser import EXIT_USAGE
from shmcoll.watch.text import EXIT_NOTHING

EXIT_WRITTEN = 0
EXIT_FAILED = 1  # the file cannot be written, or nobody may listen there
__all__ = ["EXIT_FAILED", "EXIT_NOTHING", "EXIT_USAGE", "EXIT_WRITTEN", "main"]

_ADDRESS = "127.0.0.1:9400"
_REQUEST_S = 5.0  # a client that says nothing for so long is left


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = text.PidParser(
        prog="shmcoll export",
        description="Writes metrics of all groups of this machine for Prometheus. It asks no process.",
        epilog="exit codes: 0, 1 the file cannot be written or the address is taken, 3 no group found "
        "(with --once)",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--textfile",
        type=Path,
        metavar="FILE",
        help="write this file, for node_exporter: its name should end in .prom",
    )
    where.add_argument(
        "--listen",
        nargs="?",
        const=_ADDRESS,
        type=_address,
        metavar="ADDRESS:PORT",
        help=f"answer HTTP requests for /metrics (default {_ADDRESS})",
    )
    parser.add_argument("--once", action="store_true", help="write the file once, and end")
    parser.add_argument(
        "-d",
        dest="every",
        type=text.seconds,
        default=15.0,
        metavar="SECONDS",
        help="time from one write to the next (default 15)",
    )
    return parser


def _address(word: str) -> tuple[str, int]:
    """ "[::1]:9400", "0.0.0.0:9400", ":9400"; loopback unless an address is given."""
    host, colon, port = word.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{word} is not ADDRESS:PORT, such as {_ADDRESS}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _run(options: argparse.Namespace) -> int:
    text.exit_on_signals()
    with Watcher(options.pids or None) as watcher:
        try:
            if options.listen:
                return _serve(watcher, options.listen)
            return _write(watcher, options)
        except OSError as error:
            where = options.textfile or "{}:{}".format(*options.listen)
            said = f"shmcoll export: {where}: {error.strerror or error}"
            print(printable(said), file=sys.stderr)
            return EXIT_FAILED


# ---- a file ----


def _write(watcher: Watcher, options: argparse.Namespace) -> int:
    before = ""
    if options.textfile.is_file():
        before = options.textfile.read_text(encoding="utf-8", errors="replace")
    steady = metrics.Steady(before)
    while True:
        snapshot = watcher.look()
        with text.replaced(options.textfile) as file:
            file.write(metrics.render(steady.apply(metrics.samples(snapshot))))
        if options.once:
            for problem in snapshot.problems:
                print(f"note: {problem}")
            if not snapshot.members:
                print("\n".join(text.nothing(options.pids)))
            return EXIT_WRITTEN if snapshot.members else EXIT_NOTHING
        time.sleep(options.every)


# ---- HTTP ----


def _serve(watcher: Watcher, address: tuple[str, int]) -> int:
    import http.server
    import socket
    import socketserver

    steady, lock = metrics.Steady(), threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = _REQUEST_S
        server_version = "shmcoll"

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self._answer(404, "text/plain; charset=utf-8", "the metrics are at /metrics\n")
                return
            with lock:  # two requests at once would read one board's files in turns
                said = metrics.render(steady.apply(metrics.samples(watcher.look())))
            self._answer(200, metrics.CONTENT_TYPE, said)

        def _answer(self, code: int, kind: str, said: str) -> None:
            body = said.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

        def server_bind(self) -> None:
            socketserver.TCPServer.server_bind(
                self
            )  # that of HTTPServer asks the network for a name
            self.server_name, self.server_port = str(self.server_address[0]), 0

        def handle_error(self, *_: object) -> None:
            pass  # a client that has gone

    with Server(address, Handler) as server:
        host, port = server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        print(f"listening on http://{shown}:{port}/metrics", file=sys.stderr, flush=True)
        server.serve_forever()
    return EXIT_WRITTEN
