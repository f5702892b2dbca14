"""A scorer for `kind = "command"` in Python's standard library: the mean brightness of an image, 0 to 1.

One JSON object a line comes in, one goes out. Standard output is for answers alone; messages go to standard error.
"""

import json
import sys

from reward_server import score

for line in sys.stdin:
    request = json.loads(line)
    images = [open(path, "rb").read() for path in request.get("frames", [request["image"]])]
    print(json.dumps({"id": request["id"], "reward": score(request["prompt"], images)}), flush=True)
