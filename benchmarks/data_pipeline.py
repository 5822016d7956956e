"""Times loading, shifting and cropping of CIFAR-10: feddrm against Pillow, one image at a time, in one run.

    FEDDRM_DATA=folder python -m benchmarks.data_pipeline [--device cuda] [--json FILE]

The Pillow side does what the reference pipeline does for each image: draw a box like torchvision's
RandomResizedCrop (scalar draws from torch), cut, resize, and copy the pixels. Our side works as in a run: on a CPU
one batch per core in parallel, on a GPU one batch after another, without a graph. Pillow's loop has one core; for
random crops, the draws take over half of its time.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance

from benchmarks.result import finish, peak_gib
from feddrm.data import Federation, RandomResizedCrop, load, resized_crop
from feddrm.data.crop import column_first
from feddrm.data.shift import ColourShift
from feddrm.data.view import View
from feddrm.threads import thread_map

BATCH, STEPS, SIDE = 128, 10, 32
REPEAT = 10  # batches per worker and measurement


def median_ms(work: Callable[[], object], repeats: int = 21) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def shift_everything(federation: Federation) -> int:
    pixels = 0
    for client in federation.clients:
        for split in (client.train, client.test):
            assert client.view.shift is not None
            pixels += client.view.shift.direct(split.x).numel() // 3
    return pixels


def pillow_box() -> tuple[int, int, int, int]:
    for _ in range(10):
        area = SIDE * SIDE * torch.empty(1).uniform_(0.9, 1.0).item()
        ratio = math.exp(torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3)).item())
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= SIDE and 0 < h <= SIDE:
            top, left = random.randint(0, SIDE - h), random.randint(0, SIDE - w)
            return top, left, h, w
    return 0, 0, SIDE, SIDE


def pillow_crop(image: np.ndarray, box: tuple[int, int, int, int]) -> Image.Image:
    top, left, h, w = box
    part = Image.fromarray(image).crop((left, top, left + w, top + h))
    return part.resize((SIDE, SIDE), Image.Resampling.BILINEAR)


def pillow_shift(picture: Image.Image, shift: ColourShift) -> Image.Image:
    picture = ImageEnhance.Color(picture).enhance(shift.saturation)
    h, s, v = picture.convert("HSV").split()
    turned = np.asarray(h) + np.array(int(shift.hue * 255) % 256, dtype=np.uint8)
    picture = Image.merge("HSV", (Image.fromarray(turned), s, v)).convert("RGB")
    return picture.point([int(255.999 * (v / 255) ** shift.gamma) for v in range(256)] * 3)


def pillow_access(image: np.ndarray, shift: ColourShift) -> torch.Tensor:
    picture = pillow_shift(pillow_crop(image, pillow_box()), shift)
    return (torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255 - 0.5) / 0.5


def measure_batch(x: torch.Tensor, view: View, device: str) -> dict[str, dict[str, float]]:
    """Our time on ``device`` and Pillow's on the CPU; the results are compared first."""
    shift = view.shift
    assert shift is not None
    hwc = x.permute(0, 2, 3, 1).contiguous().numpy()
    crop, generator = RandomResizedCrop(), torch.Generator(device).manual_seed(0)
    boxes = crop.boxes(BATCH, SIDE, SIDE, generator)
    listed = [tuple(b) for b in boxes.tolist()]
    x = column_first(x.to(device))  # the layout of CIFAR in a run
    assert np.array_equal(
        resized_crop(x, boxes).permute(0, 2, 3, 1).cpu().numpy(),
        np.stack([np.asarray(pillow_crop(i, b)) for i, b in zip(hwc, listed, strict=True)]),
    )
    shift.table(device)

    workers = os.cpu_count() or 1 if device == "cpu" else 1

    def per_batch(work: Callable[[], object]) -> float:
        """Milliseconds per batch, with as many parallel batches as a run on this device has."""
        with thread_map(workers) as spread:

            def all_of_it() -> None:
                list(spread(lambda _: [work() for _ in range(REPEAT)], range(workers)))
                if device != "cpu":
                    torch.cuda.synchronize()

            return median_ms(all_of_it) / (workers * REPEAT)

    # A phase draws all its boxes at once: a batch takes a tenth of the draw for ten steps.
    draw = median_ms(lambda: crop.boxes(STEPS * BATCH, SIDE, SIDE, generator)) / STEPS
    ours = {
        "resize to given boxes": per_batch(lambda: resized_crop(x, boxes)),
        "random resized crop": draw + per_batch(lambda: resized_crop(x, boxes)),
        "crop, shift and scale": draw + per_batch(lambda: view(x, boxes)),
    }
    pillow = {
        "resize to given boxes": median_ms(
            lambda: np.stack([np.asarray(pillow_crop(i, b)) for i, b in zip(hwc, listed, strict=True)])
        ),
        "random resized crop": median_ms(lambda: np.stack([np.asarray(pillow_crop(i, pillow_box())) for i in hwc])),
        "crop, shift and scale": median_ms(lambda: torch.stack([pillow_access(i, shift) for i in hwc])),
    }
    return {
        name: {
            "ours_ms": round(ours[name], 3),
            "pillow_ms": round(pillow[name], 3),
            "ratio": round(pillow[name] / ours[name], 1),
        }
        for name in ours
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--device", default="cpu", help="the device of our batches: cpu or cuda")
    parser.add_argument("--random", action="store_true", help="random images instead of CIFAR-10; times the batch only")
    arguments = parser.parse_args()
    figures: dict[str, object] = {}
    if arguments.random:
        x = torch.randint(0, 256, (BATCH, 3, SIDE, SIDE), dtype=torch.uint8)
        view = View(ColourShift(0.5, -0.1, 0.6))
    else:
        start = time.perf_counter()
        federation = load("cifar10")
        loaded = time.perf_counter()
        shift_everything(federation)
        shifted = time.perf_counter()
        figures = {
            "decode_divide_seconds": round(loaded - start, 2),
            "shift_seconds": round(shifted - loaded, 2),
            "total_seconds": round(shifted - start, 2),
            "peak_gib": round(peak_gib(), 2),
        }
        x, view = federation.clients[0].train.x[:BATCH], federation.clients[0].view
    figures |= {
        "batch_of_128": measure_batch(x, view, arguments.device),
        "images": "made" if arguments.random else "CIFAR-10",
    }
    finish(figures, arguments.json, arguments.device, ["pillow"])


if __name__ == "__main__":
    main()
