"""A small transformer that learns to write like the source code of torch, character by character.

It shows the parts of a real training loop: AdamW with two parameter groups, a schedule, clipping of the gradient of
the whole step, tied input and output embeddings, dropout, and a validation metric for each sample.

    python char_lm.py
    paceline run -w 2 -s 2 char_lm.py --slots 4
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import paceline

CONTEXT = 64
WIDTH = 96
HEADS = 4
LAYERS = 2
TEXT = F.__file__  # torch/nn/functional.py, which every reader of this file has


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).transpose(1, 3)
        q, k, v = heads.unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class CharLM(nn.Module):
    def __init__(self, num_chars: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_chars, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, num_chars, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.head.weight = self.embed.weight  # tied: one parameter under two names

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embed(x) + self.position)))


def windows(text: str, alphabet: str) -> TensorDataset:
    """Every window of CONTEXT characters; its target is the window that begins one character later."""
    codes = torch.tensor([alphabet.index(char) for char in text])
    stretches = codes.unfold(0, CONTEXT + 1, 1)
    return TensorDataset(stretches[:, :-1], stretches[:, 1:])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a character-level transformer on a text.")
    parser.add_argument("--text", default=TEXT, metavar="FILE", help="the text (default: a source file of torch)")
    parser.add_argument("--length", type=int, default=12_000, help="how many characters of it")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--slots", type=int, default=None, help="slots in a step (default: one per worker)")
    parser.add_argument("--batch-size", type=int, default=32, help="windows of text in a slot")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()

    text = Path(args.text).read_text(encoding="utf-8")[: args.length]
    alphabet = "".join(sorted(set(text)))
    split = len(text) * 9 // 10
    train_set, test_set = windows(text[:split], alphabet), windows(text[split:], alphabet)

    job = paceline.join(seed=args.seed)
    job.servable(lambda: CharLM(len(alphabet)), train_set[:1][0])
    model = CharLM(len(alphabet))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=3e-3)
    warmup = max(1, args.steps // 10)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warmup, 0.5 * (1 + math.cos(math.pi * min(step / args.steps, 1)))),
    )
    job.prepare(model, optimizer, scheduler, clip_norm=1.0)  # Paceline advances the scheduler once per step

    @job.validate(test_set, every=100)
    def bits(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        nats = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
        return {"bits_per_char": nats.mean(1) / math.log(2)}

    # An epoch has at least one step, so `args.steps` epochs are enough; the loop breaks at step --steps.
    for x, y in job.batches(train_set, args.batch_size, slots=args.slots, epochs=args.steps):
        if job.step == args.steps:
            break
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        job.log(loss=loss)
        optimizer.step()


if __name__ == "__main__":
    main()
