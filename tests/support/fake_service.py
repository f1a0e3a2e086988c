"""A process that behaves like a service towards its supervisor, and does nothing else.

It appends one JSON line per life to `<folder>/<name>.lives` and logs `ready` as the real ones do.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def main() -> int:
    """Live until SIGTERM, or end with --exit before being ready."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--exit", type=int, default=None, help="print a reason and end with this status")
    parser.add_argument("--http", type=int, default=0, help="answer GETs on this port")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--mute", action="store_true", help="never become ready")
    parser.add_argument("--child", action="store_true", help="start a child of its own")
    options = parser.parse_args()
    ended: list[int] = []

    def terminate(number: int, frame: object) -> None:
        del frame
        with (options.folder / "ends").open("a") as file:
            file.write(options.name + "\n")
        if not options.deaf:
            ended.append(number)

    signal.signal(signal.SIGTERM, terminate)
    child = subprocess.Popen(["sleep", "600"]).pid if options.child else 0
    life = {"pid": os.getpid(), "child": child, "environment": dict(os.environ)}
    with (options.folder / f"{options.name}.lives").open("a") as file:
        file.write(json.dumps(life) + "\n")
    if options.exit is not None:
        print("the model folder is damaged", file=sys.stderr)
        return int(options.exit)
    if options.http:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", options.http), _Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    if not options.mute:
        facts = {"event": "ready", "address": "127.0.0.1:1", "metrics": f"127.0.0.1:{os.getpid() % 60000 + 1}"}
        print(json.dumps(facts), file=sys.stderr, flush=True)
    while not ended:
        time.sleep(0.02)
    return 0


if __name__ == "__main__":
    sys.exit(main())
