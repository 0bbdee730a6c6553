"""Send texts to TensorFlow Serving's REST API: python rest_client.py localhost:8501 spam "A text."

Prints the outputs of each text as a line of JSON. Needs only Python.
"""

import json
import sys
import urllib.error
import urllib.parse
import urllib.request


def predict(address, model, texts):
    """Return a dict of outputs for each text."""
    url = f"http://{address}/v1/models/{urllib.parse.quote(model)}:predict"
    body = json.dumps({"instances": [{"text": text} for text in texts]}).encode()
    try:
        with urllib.request.urlopen(url, body, timeout=60) as response:
            return json.load(response)["predictions"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code}: {error.read().decode()}")
    except urllib.error.URLError as error:
        sys.exit(f"No answer from {url}: {error.reason}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(f"Usage: python {sys.argv[0]} HOST:PORT MODEL TEXT [TEXT ...]")
    for outputs in predict(sys.argv[1], sys.argv[2], sys.argv[3:]):
        print(json.dumps(outputs, ensure_ascii=False))
