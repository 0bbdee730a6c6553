"""Load a REST server with texts, and print its throughput, p50 and p99.

    python load_test.py http://localhost:8000/predict texts.txt --clients 16

TEXTS has one text per line. Each client sends one text per request, over one connection, and sends
the next when the answer has arrived.
"""

import argparse
import http.client
import itertools
import json
import threading
import time
import urllib.parse


def client(url, texts, key, start, end, latencies, errors):
    """Send requests until `end`; keep the latencies of those that are sent after `start`."""
    connection = http.client.HTTPConnection(url.hostname, url.port or 80, timeout=60)
    for text in texts:
        sent = time.perf_counter()
        if sent > end:
            return
        body = json.dumps({key: [text]})
        try:
            connection.request("POST", url.path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            failed = response.status != 200
        except OSError:
            connection.close()  # The next request opens it again.
            failed = True
        if failed:
            errors.append(text)
        elif sent > start:
            latencies.append(time.perf_counter() - sent)


def percentile(values, share):
    """Return the value that a share of the sorted values does not exceed."""
    return values[min(len(values) - 1, int(share * len(values)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("texts", help="file with one text per line")
    parser.add_argument("--key", default="texts", help="field of the request: texts or instances")
    parser.add_argument("--clients", type=int, default=1, help="number of requests at a time")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warmup", type=float, default=1, help="seconds that do not count")
    settings = parser.parse_args()
    with open(settings.texts, encoding="utf-8") as file:
        texts = [line.strip() for line in file if line.strip()]
    url = urllib.parse.urlsplit(settings.url)
    start = time.perf_counter() + settings.warmup
    end = start + settings.seconds
    latencies, errors, threads = [], [], []
    for i in range(settings.clients):
        # Each client starts at another text.
        own = itertools.islice(itertools.cycle(texts), i * len(texts) // settings.clients, None)
        arguments = url, own, settings.key, start, end, latencies, errors
        threads.append(threading.Thread(target=client, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not latencies:
        raise SystemExit(f"{settings.url} answered no request; {len(errors)} failed.")
    latencies.sort()
    found = {
        "requests": len(latencies),
        "errors": len(errors),
        "per_second": round(len(latencies) / settings.seconds, 1),
        "p50_ms": round(1000 * percentile(latencies, 0.5), 2),
        "p99_ms": round(1000 * percentile(latencies, 0.99), 2),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
