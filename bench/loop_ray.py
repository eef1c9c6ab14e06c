"""The training loop of `loop_plain.py` on a parameter server of Ray actors, which updates in lock-step.

The design is that of the synchronous part of Ray's example "Parameter Server": an actor holds the model and the
optimizer, two actors compute gradients, and the driver passes references. Gradients and weights are NumPy arrays, which
actors read from the object store without a copy. Two things are cheaper than there: gradients are added without being
stacked first, and weights are copied into the parameters without `load_state_dict`. As in the example, the driver does
not wait for a step before it asks for the next; here at most `AHEAD` steps are under way. Ray listens on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from marking import Marker
from models import data, make

from paceline.testing.engines.ray_nodes import RayNodes

AHEAD = 2
ACTORS = 3
STORE_NBYTES = 2 << 30

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="lenet")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--seconds", type=float, default=5.0, help="end this long after the warm-up")
parser.add_argument("--warmup", type=int, default=20, help="turns")
parser.add_argument("--out", type=Path, required=True)

Arrays = list[np.ndarray]


def _tensors(arrays: Arrays) -> list[torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arrays in the object store are read-only, and nobody writes to these tensors
        return [torch.from_numpy(array) for array in arrays]


class ParameterServer:
    """Holds the model and the optimizer."""

    def __init__(self, name: str) -> None:
        torch.set_num_threads(1)
        self._model, self._optimizer = make(name)

    def get_weights(self) -> Arrays:
        """The weights. Ray copies them into the object store."""
        return [parameter.detach().numpy() for parameter in self._model.parameters()]

    def apply_gradients(self, *gradients: Arrays) -> Arrays:
        """Make a step with the mean of the gradients; returns the new weights."""
        first, *others = (_tensors(arrays) for arrays in gradients)
        for number, parameter in enumerate(self._model.parameters()):
            total = torch.add(first[number], others[0][number]) if others else first[number].clone()
            for other in others[1:]:
                total.add_(other[number])
            parameter.grad = total.div_(len(gradients))
        self._optimizer.step()
        return self.get_weights()


class DataWorker:
    """Computes gradients on batches of its own."""

    def __init__(self, name: str, batch_size: int, marker: Marker) -> None:
        torch.set_num_threads(1)
        self._model, _ = make(name)
        self._images, self._labels = data().tensors
        self._batch_size, self._marker, self._step = batch_size, marker, 0

    def compute_gradients(self, weights: Arrays) -> Arrays:
        """The gradients of one batch at these weights."""
        self._marker.mark(self._step)
        self._step += 1
        with torch.no_grad():
            for parameter, weight in zip(self._model.parameters(), _tensors(weights), strict=True):
                parameter.copy_(weight)
                parameter.grad = None
        where = torch.randint(len(self._images), (self._batch_size,))
        F.cross_entropy(self._model(self._images[where]), self._labels[where]).backward()
        return [parameter.grad.numpy() for parameter in self._model.parameters()]

    def save(self) -> None:
        """Write the marks."""
        self._marker.save()


def train(args: argparse.Namespace) -> None:
    """Start the actors and run steps until `--seconds` after the warm-up."""
    import ray

    ray.init(
        num_cpus=ACTORS, object_store_memory=STORE_NBYTES, include_dashboard=False, log_to_driver=False,
        configure_logging=False, _node_ip_address="127.0.0.1",
    )  # fmt: skip
    actor = ray.remote(num_cpus=1)
    server = actor(ParameterServer).remote(args.model)
    workers = [
        actor(DataWorker).remote(
            args.model, args.batch_size, Marker(args.out, f"ray-{n}", warmup=args.warmup, seconds=args.seconds)
        )
        for n in range(ACTORS - 1)
    ]
    weights = server.get_weights.remote()
    under_way = [weights]
    steps, end = 0, float("inf")
    while time.monotonic() < end:
        weights = server.apply_gradients.remote(*(worker.compute_gradients.remote(weights) for worker in workers))
        under_way.append(weights)
        if len(under_way) > AHEAD:
            ray.wait([under_way.pop(0)], fetch_local=False)
        steps += 1
        if steps == args.warmup + 1 + AHEAD:
            end = time.monotonic() + args.seconds
    ray.get([worker.save.remote() for worker in workers])


def main() -> None:
    """Train on a cluster with one node, which ends with this process."""
    nodes = RayNodes()  # for its folder and the settings that keep Ray on 127.0.0.1; the cluster is that of `ray.init`
    os.environ.update(nodes.environment, OMP_NUM_THREADS="1", PYTHONPATH=str(Path(__file__).parent))
    try:
        train(parser.parse_args())
    finally:
        import ray

        ray.shutdown()
        nodes.close()


if __name__ == "__main__":
    main()
