"""Ask a model while it trains: which version answers, and how old it is.

Start a run and a predictor that follows it, then this script:

    paceline run -w 2 -s 2 fashion_mnist.py
    paceline serve --follow latest
    python serve_follow.py

It sends one image of the test set ten times, by the Open Inference Protocol, with nothing but the standard library.
"""

import argparse
import json
import time
import urllib.request

import paceline.datasets


def ask(url: str, image: list[float], shape: list[int]) -> dict:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": image}]}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a model while it trains.")
    parser.add_argument("--url", default="http://localhost:8080/v2/models/fashion_mnist/infer")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--data", default=None, metavar="DIR", help="directory of the four *-ubyte.gz files")
    args = parser.parse_args()

    image, label = paceline.datasets.fashion_mnist(args.data, split="test")[0]
    for _ in range(args.times):
        answer = ask(args.url, image.flatten().tolist(), [1, *image.shape])
        scores, made_by = answer["outputs"][0]["data"], answer["parameters"]
        guess = scores.index(max(scores))
        print(f"version {made_by['version']}, {made_by.get('age_s', 0):.1f} s old: class {guess} (it is {int(label)})")
        time.sleep(1)


if __name__ == "__main__":
    main()
