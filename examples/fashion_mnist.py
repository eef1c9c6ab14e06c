"""LeNet on Fashion-MNIST: a network of convolutions on images.

Alone, in one process:                  python fashion_mnist.py
On two workers and two servers:         paceline run -w 2 -s 2 fashion_mnist.py --slots 4
Without waiting for the slower worker:  paceline run -w 2 -s 2 --mode ssp:3 fashion_mnist.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import paceline
import paceline.datasets


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


OPTIMIZERS = {  # class, default learning rate, other arguments
    "sgd": (torch.optim.SGD, 0.05, {"momentum": 0.9, "weight_decay": 5e-4}),
    "adam": (torch.optim.Adam, 2e-3, {"weight_decay": 1e-4}),
    "adamw": (torch.optim.AdamW, 2e-3, {"weight_decay": 1e-2}),
    "adagrad": (torch.optim.Adagrad, 2e-2, {"weight_decay": 1e-4}),
    "rmsprop": (torch.optim.RMSprop, 1e-3, {"weight_decay": 1e-4}),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train LeNet on Fashion-MNIST.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, metavar="N", help="end after N steps (0: after the epochs)")
    parser.add_argument("--batch-size", type=int, default=64, help="samples in a slot")
    parser.add_argument("--slots", type=int, default=None, help="slots in a step (default: one per worker)")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="sgd")
    parser.add_argument("--lr", type=float, default=None, help="learning rate (default: depends on the optimizer)")
    parser.add_argument("--every", type=int, default=200, metavar="N", help="validate every N steps")
    parser.add_argument("--data", default=None, metavar="DIR", help="directory of the four *-ubyte.gz files")
    parser.add_argument("--save", default=None, metavar="FILE", help="write the final model as safetensors")
    return parser.parse_args()


def main() -> None:
    args = parse()
    job = paceline.join(seed=7)
    job.servable(LeNet, torch.zeros(1, 1, 28, 28))  # for `paceline export` and `paceline serve`
    train_set, test_set = paceline.datasets.fashion_mnist(args.data)
    model = LeNet()
    optimizer_class, usual_lr, options = OPTIMIZERS[args.optimizer]
    optimizer = optimizer_class(model.parameters(), lr=args.lr or usual_lr, **options)
    job.prepare(model, optimizer)

    @job.validate(test_set, every=args.every)
    def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"accuracy": (model(x).argmax(1) == y).float()}

    for x, y in job.batches(train_set, args.batch_size, slots=args.slots, epochs=args.epochs):
        if args.steps and job.step == args.steps:
            break
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        job.log(loss=loss)
        optimizer.step()

    if args.save:
        job.save(args.save)


if __name__ == "__main__":
    main()
