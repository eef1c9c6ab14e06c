"""The peer of `bench/serve.py`: LitServe with batching, one worker."""

from __future__ import annotations

import sys
from typing import Any

import litserve
import torch
from models import LeNet


class Api(litserve.LitAPI):  # type: ignore[misc]
    """LeNet on the same body."""

    def setup(self, device: str) -> None:
        """Build the model."""
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.model = LeNet().eval()

    def decode_request(self, request: Any) -> torch.Tensor:
        """The input of one request."""
        given = request["inputs"][0]
        return torch.tensor(given["data"], dtype=torch.float32).view(1, 28, 28)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Compute a batch."""
        with torch.inference_mode():
            return self.model(x)

    def encode_response(self, y: torch.Tensor) -> Any:
        """The answer of one request."""
        return {"outputs": [{"name": "output", "datatype": "FP32", "shape": [1, 10], "data": y.tolist()}]}


if __name__ == "__main__":
    api = Api(max_batch_size=64, batch_timeout=0.001, api_path="/v2/models/lenet/infer")
    litserve.LitServer(api, accelerator="cpu", workers_per_device=1).run(
        port=int(sys.argv[1]), host="127.0.0.1", log_level="warning", generate_client_file=False
    )
