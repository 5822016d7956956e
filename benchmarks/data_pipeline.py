"""Loading, shifting and cropping CIFAR-10, against Pillow one image at a time, in one run.

    FEDDRM_DATA=folder python benchmarks/data_pipeline.py [--json FILE]

The Pillow side does what the reference pipeline does per image: draw a box as torchvision's
RandomResizedCrop does (scalar draws from torch), cut, resize, and copy the pixels out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import platform
import random
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import Image, ImageEnhance

from feddrm.data import Federation, RandomResizedCrop, load, resized_crop
from feddrm.data.shift import ColourShift

BATCH, STEPS, SIDE = 128, 10, 32


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


def measure_batch(federation: Federation) -> dict[str, dict[str, float]]:
    client = federation.clients[0]
    shift = client.view.shift
    assert shift is not None
    x = client.train.x[:BATCH]
    hwc = x.permute(0, 2, 3, 1).contiguous().numpy()
    crop, generator = RandomResizedCrop(), torch.Generator().manual_seed(0)
    boxes = crop.boxes(BATCH, SIDE, SIDE, generator)
    listed = [tuple(b) for b in boxes.tolist()]
    assert np.array_equal(
        resized_crop(x, boxes).permute(0, 2, 3, 1).numpy(),
        np.stack([np.asarray(pillow_crop(i, b)) for i, b in zip(hwc, listed, strict=True)]),
    )
    shift.table("cpu")
    # A phase draws its boxes at once, so a batch pays a tenth of a ten-step draw.
    draw = median_ms(lambda: crop.boxes(STEPS * BATCH, SIDE, SIDE, generator)) / STEPS
    ours = {
        "resize to given boxes": median_ms(lambda: resized_crop(x, boxes)),
        "random resized crop": draw + median_ms(lambda: resized_crop(x, boxes)),
        "crop, shift and scale": draw + median_ms(lambda: client.view(x, boxes)),
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
    arguments = parser.parse_args()
    start = time.perf_counter()
    federation = load("cifar10")
    loaded = time.perf_counter()
    shift_everything(federation)
    shifted = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures = {
        "decode_divide_seconds": round(loaded - start, 2),
        "shift_seconds": round(shifted - loaded, 2),
        "total_seconds": round(shifted - start, 2),
        "peak_gib": round(peak, 2),
        "batch_of_128": measure_batch(federation),
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "pillow": PIL.__version__, "numpy": np.__version__},
        "date": datetime.date.today().isoformat(),
    }
    print(json.dumps(figures, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
