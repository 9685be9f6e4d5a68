"""Several processes beside one: what does a request cost in CPU, and how many are answered?

    python -m loadtests.checks.workers [--workers 2] [--seconds 5] [--rounds 4]

A gateway with one process and one with several are asked in turn for the explanation of a row of the credit
model, on as many connections, each of which asks as soon as it has its answer. Clients and gateways share the
machine's cores. Ends with 1 where several take more than 1.1 times the CPU of one for a request, or refuse
one.
"""

import argparse
import contextlib
import sys
import time
from pathlib import Path
from statistics import median

from loadtests.load import raw
from loadtests.load.questions import EXPLAIN
from loadtests.systems import models
from loadtests.systems.process import Server, gateway

MOST_CPU = 1.1  # times that of one process
CONNECTIONS = 16  # the kernel spreads them: few would be spread unevenly
REST_S = 0.5


def cost(server: Server, seconds: float) -> tuple[float, float]:
    """Microseconds of CPU of an answer, and answers per second. Raises SystemExit where one was none."""
    question = models.question(models.CREDIT, EXPLAIN)
    body, headers = question.as_json
    request = raw.request(server.http, question.path, body, headers)
    used_s = server.cpu_s()
    tally = raw.drive(raw.Drive(server.http, request, seconds, CONNECTIONS))
    used_s = server.cpu_s() - used_s
    time.sleep(REST_S)
    if tally.broken or set(tally.took_s) != {raw.OK}:
        raise SystemExit(f"not all were answered: {[*tally.took_s]}, {tally.broken} connections broke")
    return used_s / tally.count(raw.OK) * 1e6, tally.count(raw.OK) / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    repository = Path("model_repository")
    with contextlib.ExitStack() as servers:
        one, several = (
            servers.enter_context(gateway(repository, "--grpc-port", "off", "--workers", str(count)))
            for count in (1, given.workers)
        )
        for server in (one, several):
            cost(server, 1)
        rounds = [(cost(one, given.seconds), cost(several, given.seconds)) for _ in range(given.rounds)]
    ratio = median(b[0] / a[0] for a, b in rounds)
    for workers, index in ((1, 0), (given.workers, 1)):
        used_us, rate = (median(each[index][what] for each in rounds) for what in (0, 1))
        print(f"{workers:2} workers   {used_us:6.0f} µs of CPU   {rate:6.0f} answers a second")
    print(f"CPU of an answer: {ratio:.2f} times that of one process (at most {MOST_CPU})")
    return int(ratio > MOST_CPU)


if __name__ == "__main__":
    sys.exit(main())
