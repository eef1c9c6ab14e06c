"""The peer of `bench/serve.py`: a starlette handler that calls the model for each request."""

from __future__ import annotations

import sys

import torch
import uvicorn
from models import LeNet
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

torch.set_num_threads(1)
torch.manual_seed(1)
model = LeNet().eval()


async def infer(request: Request) -> Response:
    """Compute one request."""
    given = (await request.json())["inputs"][0]
    x = torch.tensor(given["data"], dtype=torch.float32).view(given["shape"])
    with torch.inference_mode():
        y = model(x)
    output = {"name": "output", "datatype": "FP32", "shape": list(y.shape), "data": y.flatten().tolist()}
    return JSONResponse({"model_name": "lenet", "outputs": [output]})


async def ready(request: Request) -> Response:
    """Say that the server answers."""
    return JSONResponse({"ready": True})


routes = [Route("/v2/models/lenet/infer", infer, methods=["POST"]), Route("/v2/health/ready", ready)]
uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_level="warning")
