"""A reward server in Python's standard library: the mean brightness of an image, 0 (black) to 1 (white).

    python3 reward_server.py --port 8000

`GET /health` and `POST /compute` are Flow-Factory's protocol. Put another function in the place of `score`.
"""

import argparse
import base64
import json
import struct
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def pixels(png):
    """Width, height and the bytes (red, green, blue of each pixel) of a PNG file as flow-train writes it: 8-bit RGB.

    With Pillow: `numpy.asarray(Image.open(io.BytesIO(png)))`.
    """
    if png[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("not a PNG file")
    at, packed = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        content = png[at + 8 : at + 8 + length]
        at += length + 12
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", content)
            if (depth, colour, interlaced) != (8, 2, 0):
                raise ValueError("only 8-bit RGB without interlacing is read")
        elif kind == b"IDAT":
            packed += content
    rows, stride, above = zlib.decompress(packed), width * 3, bytearray(width * 3)
    out = bytearray()
    for row in range(height):
        start = row * (stride + 1)
        how, line = rows[start], bytearray(rows[start + 1 : start + 1 + stride])
        for i in range(stride):
            left = line[i - 3] if i >= 3 else 0
            corner = above[i - 3] if i >= 3 else 0
            up = above[i]
            nearest = left + up - corner
            paeth = min((left, up, corner), key=lambda value: abs(nearest - value))
            line[i] = (line[i] + (0, left, up, (left + up) // 2, paeth)[how]) % 256
        out += line
        above = line
    return width, height, bytes(out)


def brightness(png):
    """The mean of all values of a PNG file, 0 to 1."""
    _, _, values = pixels(png)
    return sum(values) / len(values) / 255


def score(prompt, images):
    """What one image (or the frames of a video) is worth for its prompt."""
    return sum(brightness(image) for image in images) / len(images)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/health":
            self.answer(200, {"status": "ok"})
        else:
            self.answer(404, {"error": "there is /health and /compute"})

    def do_POST(self):
        try:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            samples = request["video"] or [[image] for image in request["image"]]
            images = [[base64.b64decode(image) for image in sample] for sample in samples]
            self.answer(200, {"rewards": [score(*it) for it in zip(request["prompt"], images, strict=True)]})
        except Exception as error:
            self.answer(500, {"error": repr(error)})

    def answer(self, status, content):
        content = json.dumps(content, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    arguments = parser.parse_args()
    server = ThreadingHTTPServer((arguments.host, arguments.port), Handler)
    print(f"http://{arguments.host}:{server.server_port}", flush=True)
    server.serve_forever()
