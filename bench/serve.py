"""Serving LeNet on one core: the highest rate with p99 at most 50 ms, beside other servers, with the same body.

python bench/serve.py --rounds 3 --json serve.json

Each server runs on one core, the clients on another: closed loops of 1 to 64 connections, each for some seconds. The
rate is that of the number of connections that gives most answers with p99 <= 50 ms. Servers take turns, by rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BODY = json.dumps(
    {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [1, 1, 28, 28], "data": [i % 256 / 256 for i in range(784)]}
        ]
    }
).encode()
CONNECTIONS = (1, 2, 4, 8, 16, 32, 64)
P99_S = 0.05
PATH = "/v2/models/lenet/infer"


# ------------------------------------------------------------------ clients, in a process of their own


async def _client(port: int, until: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    while time.monotonic() < until:
        began = time.monotonic()
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        times.append(time.monotonic() - began)
    writer.close()


async def _load(port: int, connections: int, seconds: float) -> dict[str, float]:
    times: list[float] = []
    began = time.monotonic()
    await asyncio.gather(*(_client(port, began + seconds, times) for _ in range(connections)))
    took = time.monotonic() - began
    times.sort()
    return {"rate": len(times) / took, "p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)]}


def measured(port: int, connections: int, seconds: float, core: int) -> dict[str, float]:
    """The rate and the latencies of some closed loops, made by a process on `core`."""
    words = ["taskset", "-c", str(core), sys.executable, __file__, "--load", str(port), str(connections), str(seconds)]
    found: dict[str, float] = json.loads(subprocess.run(words, check=True, capture_output=True, timeout=120).stdout)
    return found


# ------------------------------------------------------------------ servers


def _exported(folder: Path) -> Path:
    """A model file with its card, of the script beside this one."""
    from paceline.blocks.tensors import digest
    from paceline.predict.card import ModelCard, ScriptSource, card_path, encode_card
    from paceline.runtime.model_files import build_servable, servable_of
    from paceline.worker.save_model import save_model

    source = ScriptSource(str(HERE / "loop_servable.py"), cwd=str(HERE))
    built = build_servable(servable_of(source))
    file = folder / "lenet.safetensors"
    card = ModelCard(
        name="lenet",
        kind="safetensors",
        sha256=save_model(built.model, file),
        digest=digest(built.model),
        signature=built.signature,
        script=source,
    )
    card_path(file).write_text(encode_card(card))
    return file


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(words: Sequence[str], port: int, core: int) -> Iterator[float]:
    """A server on `core`; gives the seconds until it answered."""
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        ["taskset", "-c", str(core), *words], cwd=HERE, env=environment, start_new_session=True
    ) as process:
        try:
            while not _answers(port):
                if process.poll() is not None or time.monotonic() - began > 120:
                    raise RuntimeError(f"{words} does not answer")
                time.sleep(0.02)
            yield time.monotonic() - began
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError, RuntimeError, asyncio.IncompleteReadError):
        asyncio.run(_load(port, 1, 0.01))
        return True
    return False


def best(words: Sequence[str], port: int, seconds: float) -> dict[str, Any]:
    """The highest rate of a server with p99 within the limit."""
    with running(words, port, core=0) as start_s:
        measured(port, 8, 1.0, core=1)  # warm
        found = {n: measured(port, n, seconds, core=1) for n in CONNECTIONS}
    fit = {n: one for n, one in found.items() if one["p99"] <= P99_S}
    chosen = max(fit or found, key=lambda n: found[n]["rate"])
    return {"connections": chosen, "within": bool(fit), "start_s": start_s, **found[chosen]}


def main() -> None:
    """Measure all servers in turn; print the medians and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--load", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        print(json.dumps(asyncio.run(_load(int(args.load[0]), int(args.load[1]), float(args.load[2])))))
        return
    with tempfile.TemporaryDirectory() as folder:
        file, port = _exported(Path(folder)), _free_port()
        servers = {
            "paceline": [sys.executable, "-m", "paceline.cli.main", "serve", str(file), "--port", str(port)],
            "plain_handler": [sys.executable, str(HERE / "serve_plain.py"), str(port)],
        }
        if importlib.util.find_spec("litserve"):
            servers["litserve"] = [sys.executable, str(HERE / "serve_litserve.py"), str(port)]
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in servers}
        for _ in range(args.rounds):
            for name, words in servers.items():
                rounds[name].append(best(words, port, args.seconds))
                print(name, {k: round(v, 4) for k, v in rounds[name][-1].items()}, flush=True)
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    import_s = time.monotonic() - began
    rates = {name: statistics.median(one["rate"] for one in found) for name, found in rounds.items()}
    pairs = {
        name: statistics.median(a["rate"] / b["rate"] for a, b in zip(rounds["paceline"], found, strict=True))
        for name, found in rounds.items()
        if name != "paceline"
    }
    document = {
        "rates": rates,
        "ratios": {f"over_{name}": ratio for name, ratio in pairs.items()},
        "missing": [name for name in ("litserve", "ray_serve") if name not in servers],
        "start_s": statistics.median(one["start_s"] for one in rounds["paceline"]),
        "import_torch_s": import_s,
        "rounds": rounds,
        "versions": {name: version(name) for name in ("torch", "uvicorn", "starlette", "httptools")},
    }
    print(json.dumps({k: v for k, v in document.items() if k != "rounds"}, indent=1))
    if args.json:
        args.json.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
