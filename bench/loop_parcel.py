"""Hands batches of 25 MB to another process: by a sampler's shared memory, or by the queue of a DataLoader.

The figures are the seconds for a batch, and the processor seconds of the process that gets it. It sums the numbers of
the batch, which reads all of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from inputs import Large, only
from torch.utils.data import DataLoader

BATCHES = 40
WARMUP = 10
TOKEN = b"b" * 32


def by_queue() -> Iterator[torch.Tensor]:
    """Batches from a DataLoader with one process."""
    yield from DataLoader(Large(), 1, collate_fn=only, num_workers=1)


def sampler(pipe: Any) -> None:
    """The process of a sampler, whose script is in a loop over the data."""
    from paceline.core.sampler.preparing import SamplerCore
    from paceline.data.data_spec import open_data
    from paceline.data.loader import BatchMaker
    from paceline.sampler.job import Preparation
    from paceline.sampler.service import Introduction, SamplerService
    from paceline.transport.zmq.port import ZmqPort

    torch.set_num_threads(1)
    spec = open_data(Large(), 1, collate_fn=only)
    service = SamplerService(
        lambda: ZmqPort("sampler-0/1-1-abc", TOKEN, listen="127.0.0.1"),
        Introduction("sampler-0", 1, "here"),
        lambda: None,
        timeout_s=600.0,
    )
    service.start()
    service.desk.open(0, SamplerCore("sampler-0", "large", 512 << 20))
    pipe.send((service.node, service.address))
    Preparation(service, BatchMaker(spec, 1)).run(lambda: bool(pipe.poll()))
    service.close()


def by_shared_memory() -> Iterator[torch.Tensor]:
    """Batches from a sampler."""
    from paceline.data.batch_source import LocalBatches, SlotKey
    from paceline.data.data_spec import open_data
    from paceline.messages import Samplers
    from paceline.transport.zmq.port import ZmqPort
    from paceline.types import Segment
    from paceline.worker.sampled_batches import SampledBatches
    from paceline.worker.sampler_link import SamplerLink
    from paceline.worker.session import Session

    class Asking:
        """The part of a session that asks samplers."""

        def __init__(self) -> None:
            self.port = ZmqPort("worker-0/1-1-abc", TOKEN)
            self.samplers = SamplerLink(self.port, itertools.count(1).__next__)

        def pump(self, awaited: str, wait_s: float) -> None:
            """Handle one event."""
            event = self.port.recv(wait_s)
            if event is not None:
                self.samplers.handle(event, time.monotonic())

    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=sampler, args=(theirs,), daemon=True)
    process.start()
    session = Asking()
    node, address = mine.recv()
    session.samplers.roster(Samplers(1, ((node, address),)))
    while not session.samplers.has_samplers:
        session.pump("", 0.1)
    segment = Segment(0, 0, 0, 0, 1 << 12, 1, 1 << 12, 1, 1, False, False, 0, "bsp")
    batches = SampledBatches(LocalBatches(open_data(Large(), 1, collate_fn=only), 1), cast(Session, session))
    batches.open("large")
    try:
        for step in range(1 << 12):
            key = SlotKey(segment, step, 0)
            batches.prefetch(key)
            yield batches.get(key).content
    finally:
        batches.close()
        session.port.close()
        mine.send("end")
        process.join()


def main() -> None:
    """Measure one of the two ways, and write its figures as marks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--by", choices=("queue", "memory"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    given = by_queue() if args.by == "queue" else by_shared_memory()
    began = used = 0.0
    for number in range(WARMUP + BATCHES):
        if number == WARMUP:
            began, used = time.perf_counter(), time.process_time()
        batch = next(given)
        float(batch.sum())
        del batch
    took, used = (time.perf_counter() - began) / BATCHES, (time.process_time() - used) / BATCHES
    cast(Any, given).close()
    (args.out / "rank-0.marks.json").write_text(json.dumps([[0, took], [1, used]]))


if __name__ == "__main__":
    main()
