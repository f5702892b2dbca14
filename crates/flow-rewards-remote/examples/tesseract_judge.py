"""Tesseract as a scorer for `kind = "command"`: 1 minus the edits from what it reads to the text in the prompt's double quotes, as a share of
that text's length, 0 to 1; spaces and case do not count (Flow-GRPO's formula, with another reader).

Needs Tesseract's library and its English data (Debian: `apt install tesseract-ocr`) and Python's standard library. Where nothing may be
installed, `TESSERACT_LIBRARY` names the file of the library (one that the Python package `tesserocr` carries will do), and `TESSDATA_PREFIX`
the folder with `eng.traineddata`. The library is called directly, since a process of its own for each image would take a hundred times as long.
"""

import ctypes
import ctypes.util
import json
import os
import sys

from reward_server import pixels

# One line of text (`PSM_SINGLE_LINE`), and dots per inch, which an image of a few pixels does not say.
SINGLE_LINE, RESOLUTION = 7, 70


class Reader:
    """Tesseract with its English data."""

    def __init__(self):
        name = os.environ.get("TESSERACT_LIBRARY") or ctypes.util.find_library("tesseract")
        if name is None:
            raise SystemExit("Tesseract's library is not there; on Debian, `apt install tesseract-ocr`")
        self.library = ctypes.CDLL(name)
        self.library.TessBaseAPICreate.restype = ctypes.c_void_p
        self.library.TessBaseAPIGetUTF8Text.restype = ctypes.c_void_p
        self.api = ctypes.c_void_p(self.library.TessBaseAPICreate())
        if self.library.TessBaseAPIInit3(self.api, None, b"eng") != 0:
            raise SystemExit("Tesseract's English data are not there; on Debian, `apt install tesseract-ocr-eng`")
        self.library.TessBaseAPISetPageSegMode(self.api, SINGLE_LINE)

    def read(self, png):
        """The text of a PNG file as flow-train writes it."""
        width, height, rgb = pixels(png)
        self.library.TessBaseAPISetImage(self.api, bytes(rgb), width, height, 3, 3 * width)
        self.library.TessBaseAPISetSourceResolution(self.api, RESOLUTION)
        text = ctypes.c_void_p(self.library.TessBaseAPIGetUTF8Text(self.api))
        found = ctypes.string_at(text).decode() if text else ""
        self.library.TessDeleteText(text)
        return found

    def close(self):
        self.library.TessBaseAPIDelete(self.api)


def edits(read, target):
    """Levenshtein's distance."""
    row = list(range(len(target) + 1))
    for i, letter in enumerate(read, 1):
        above, row = row, [i]
        for j, wanted in enumerate(target):
            row.append(min(above[j] + (letter != wanted), above[j + 1] + 1, row[j] + 1))
    return row[-1]


def plain(text):
    return "".join(text.split()).lower()


def score(read, prompt):
    target, read = plain(prompt.split('"')[1]), plain(read)
    distance = 0 if target in read else min(edits(read, target), len(target))
    return 1 - distance / len(target)


def main():
    reader = Reader()
    for line in sys.stdin:
        request = json.loads(line)
        with open(request["image"], "rb") as file:
            reward = score(reader.read(file.read()), request["prompt"])
        print(json.dumps({"id": request["id"], "reward": reward}), flush=True)
    reader.close()


if __name__ == "__main__":
    main()
