"""What PP-OCR reads in the pictures of `words_peer.py`: mean reward and share of words read exactly, checkpoint by checkpoint.

    words_read.py FOLDER [--grid OUT.png] [--name NAME]

The reader is that of the reward `ocr` with `detect = false`: the recogniser of `rapidocr` 3.10.0 on the picture as a line. The reward is
Flow-GRPO's (`crates/flow-rewards-ocr/src/text.rs`): 1 minus the edits as a share of the word, at least 0; 1 where the word is within what was read.
Needs `rapidocr==3.10.0` and `onnxruntime`. `--grid` draws the first pictures of each checkpoint, of one variant with `--name`.
"""

import argparse
import re
from pathlib import Path

import numpy as np

HEIGHT, MIN_WIDTH, BATCH = 48, 320, 16
MODEL = "PP-OCRv6_rec_small.onnx"


def bilinear(length, wanted):
    """Two neighbours of each of `wanted` places along an axis of `length` pixels, and the weight of the second."""
    place = ((np.arange(wanted) + 0.5) * (length / wanted) - 0.5).clip(0, length - 1)
    low = np.floor(place).astype(int)
    return low, np.minimum(low + 1, length - 1), (place - low).astype(np.float32)


def resized(pictures, height, width):
    """Pictures [B, H, W, 3] of bytes in another size, as OpenCV's `INTER_LINEAR` up to its rounding."""
    left, right, share = bilinear(pictures.shape[2], width)
    values = pictures.astype(np.float32)
    values = values[:, :, left] + (values[:, :, right] - values[:, :, left]) * share[:, None]
    above, below, share = bilinear(pictures.shape[1], height)
    values = values[:, above] + (values[:, below] - values[:, above]) * share[:, None, None]
    return np.floor(values + 0.5)


class Reader:
    """PP-OCRv6's recogniser: `crates/flow-rewards-ocr/src/paddle/recogniser.rs`."""

    def __init__(self, path=None, min_width=MIN_WIDTH, threads=1):
        import onnxruntime

        if path is None:
            import rapidocr

            path = Path(rapidocr.__file__).parent / "models" / MODEL
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.min_width = min_width
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        characters = self.session.get_modelmeta().custom_metadata_map["character"]
        self.characters = ["", *characters.removesuffix("\n").split("\n"), " "]

    def lines(self, pictures):
        """[B, 3, 48, W]: the channels blue first, from -1 to 1, and zeros on the right where a line is shorter than `min_width`."""
        width = -(-HEIGHT * pictures.shape[2] // pictures.shape[1])
        batch = np.zeros((len(pictures), 3, HEIGHT, max(width, self.min_width)), np.float32)
        small = resized(pictures[..., ::-1], HEIGHT, width)
        batch[:, :, :, :width] = (small / np.float32(255.0) - np.float32(0.5)).transpose(0, 3, 1, 2) / np.float32(0.5)
        return batch

    def read(self, pictures):
        """Texts of pictures [B, H, W, 3] of bytes."""
        texts, name = [], self.session.get_inputs()[0].name
        for begin in range(0, len(pictures), BATCH):
            (probabilities,) = self.session.run(None, {name: self.lines(pictures[begin : begin + BATCH])})
            for classes in probabilities.argmax(2):
                changes = np.flatnonzero(np.diff(classes, prepend=-1))
                texts.append("".join(self.characters[classes[place]] for place in changes))
        return texts


def distance(read, wanted):
    """Levenshtein's."""
    row = list(range(len(wanted) + 1))
    for index, letter in enumerate(read, 1):
        following = [index]
        for place, other in enumerate(wanted, 1):
            following.append(min(row[place] + 1, following[-1] + 1, row[place - 1] + (letter != other)))
        row = following
    return row[-1]


def reward(read, wanted):
    read = read.replace(" ", "").lower()
    if wanted in read:
        return 1.0
    return 1.0 - min(distance(read, wanted), len(wanted)) / len(wanted)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--name")
    options = parser.parse_args()
    reader, strips = Reader(), []
    order = lambda path: (path.stem.rpartition("-")[0], int(path.stem.rpartition("-")[2]))
    files = sorted((path for path in options.folder.rglob("*.npz") if re.search(r"-\d+$", path.stem)), key=order)
    print(f"{'variant':24} {'step':>7} {'reward':>7} {'exact':>6}   by letters")
    for path in files:
        name, step = order(path)
        if options.name and name != options.name:
            continue
        with np.load(path) as arrays:
            pictures, words = arrays["pictures"], [word.decode() for word in arrays["words"]]
        texts = reader.read(pictures)
        rewards = np.array([reward(text, word) for text, word in zip(texts, words)])
        exact = np.array([text.replace(" ", "").lower() == word for text, word in zip(texts, words)])
        lengths = np.array([len(word) for word in words])
        parts = " ".join(f"{length}: {rewards[lengths == length].mean():.2f}" for length in np.unique(lengths))
        print(f"{name:24} {step:7} {rewards.mean():7.3f} {exact.mean():6.3f}   {parts}", flush=True)
        chosen = np.linspace(0, len(pictures) - 1, 12).astype(int)
        strips.append(np.concatenate(list(pictures[chosen]), axis=1))
    if options.grid and strips:
        from PIL import Image

        grid = Image.fromarray(np.concatenate(strips, axis=0))
        grid.resize((2 * grid.width, 2 * grid.height)).save(options.grid)


if __name__ == "__main__":
    main()
