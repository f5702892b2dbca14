"""A reward server for `kind = "remote"` in front of one of flow_grpo's reward servers, in Python's standard library.

    python3 flow_grpo_adapter.py http://127.0.0.1:18085 --kind geneval --port 8000

flow_grpo's servers (github.com/yifan123/reward-server) take `POST /` with a pickle: `images` (files), and

    --kind deqa      nothing else; the answer has `outputs`
    --kind unified   `prompts`; the answer has `outputs`
    --kind geneval   `meta_datas` (the prompts' metadata) and `only_strict`; the answer has `scores` and more

Use `metadata = true` in the config with geneval. Images go as the PNG files that flow-train sends. flow_grpo itself sends JPEG files of
quality 75, which change scores a little: `--jpeg 75` does so, too, and needs Pillow.

A pickle can run anything when it is read. This one is read without: it may hold numbers, texts, lists and dictionaries, and numbers and
arrays of numpy, which are made here and not by numpy; it is refused if it names anything else.
"""

import argparse
import base64
import io
import json
import pickle
import struct
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NUMBERS = {"f2": "e", "f4": "f", "f8": "d", "i4": "i", "i8": "q", "u1": "B", "b1": "?"}


class Dtype:
    """What numpy writes of a type: its letters, and the order of bytes."""

    def __init__(self, letters, *_):
        if letters not in NUMBERS:
            raise pickle.UnpicklingError(f"numbers of the type {letters!r} are no scores")
        self.letters, self.order = letters, "<"

    def __setstate__(self, state):
        self.order = ">" if state[1] == ">" else "<"

    def numbers(self, data):
        form = NUMBERS[self.letters]
        return [value for (value,) in struct.iter_unpack(self.order + form, data)]


class Array(list):
    """A list in the place of an array."""

    def __setstate__(self, state):
        _, shape, dtype, _, data = state
        if len(shape) != 1 and set(shape[1:]) != {1}:
            raise pickle.UnpicklingError(f"an array of the shape {shape} is no list of scores")
        self[:] = dtype.numbers(data)


class NumbersOnly(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries, and runs nothing."""

    def find_class(self, module, name):
        known = {
            ("multiarray", "scalar"): lambda dtype, data: dtype.numbers(data)[0],
            ("multiarray", "_reconstruct"): lambda *_: Array(),
            ("numpy", "ndarray"): Array,
            ("numpy", "dtype"): Dtype,
        }
        if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            module = "multiarray"
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"the server's pickle names {module}.{name}, which is not run")
        return known[module, name]


def as_jpeg(png, quality):
    from PIL import Image

    file = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(file, format="JPEG", quality=quality)
    return file.getvalue()


def scores(images, prompts, metadata):
    """What flow_grpo's server says of images, one number each."""
    request = {"images": images}
    if options.kind == "unified":
        request["prompts"] = prompts
    if options.kind == "geneval":
        request |= {"meta_datas": metadata, "only_strict": options.only_strict}
    body = pickle.dumps(request, protocol=4)
    with urllib.request.urlopen(urllib.request.Request(options.server, data=body), timeout=options.timeout) as answer:
        found = NumbersOnly(io.BytesIO(answer.read())).load()
    key = options.key or ("scores" if options.kind == "geneval" else "outputs")
    if not isinstance(found, dict) or key not in found:
        raise ValueError(f"the server's answer has no `{key}`: {sorted(found) if isinstance(found, dict) else found!r}")
    return [float(value) for value in found[key]]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path == "/health"
        self.answer(200 if known else 404, {"status": "ok"} if known else {"error": "there is /health and /compute"})

    def do_POST(self):
        try:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if request["video"]:
                raise ValueError("flow_grpo's servers score images, not videos")
            if options.kind == "geneval" and request.get("metadata") is None:
                raise ValueError("geneval reads the prompts' metadata: set `metadata = true` in the config")
            images = [base64.b64decode(image) for image in request["image"]]
            if options.jpeg:
                images = [as_jpeg(image, options.jpeg) for image in images]
            self.answer(200, {"rewards": scores(images, request["prompt"], request.get("metadata"))})
        except urllib.error.URLError as error:
            # What may pass: flow-train asks again.
            self.answer(503, {"error": f"{options.server}: {error}"})
        except Exception as error:
            self.answer(400, {"error": repr(error)})

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
    parser.add_argument("server", help="URL of flow_grpo's server, such as http://127.0.0.1:18085")
    parser.add_argument("--kind", choices=["deqa", "unified", "geneval"], required=True)
    parser.add_argument("--key", help="the list of the answer that is the reward, such as rewards or strict_rewards of geneval")
    parser.add_argument("--only-strict", action="store_true", help="geneval: strict scores alone are computed")
    parser.add_argument("--jpeg", type=int, metavar="QUALITY", help="send JPEG files of this quality")
    parser.add_argument("--timeout", type=float, default=120, help="seconds that the server may take")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    options = parser.parse_args()
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    print(f"http://{options.host}:{server.server_port}", flush=True)
    server.serve_forever()
