"""The load generator: the users of our locustfile, run by locust as a library.

    python -m loadtests.load.generator PLAN.json SEEN.json

Closed load is callers that ask, wait for the answer and ask again. Open load is one that sends what is due
when it is due, whatever has been answered, so that a queue can grow as it does with real callers; times count
from when a request was due, or a slow server would slow down its own measurement.
"""

import locust  # noqa: F401  # first: it patches the standard library for gevent

# isort: split

import gc
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import gevent
import gevent.pool
from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from loadtests.load.expected import compared
from loadtests.load.plan import PLAN, SEEN, Answer, Plan, Seen, arrivals
from loadtests.load.questions import WrongAnswerError
from loadtests.locustfile import BinaryUser, GatewayUser, GrpcUser, JsonUser, RefusedError

CONNECTIONS = 1024  # more open requests than this wait in the client, and that counts
FORMS: dict[str, type[GatewayUser]] = {"json": JsonUser, "binary": BinaryUser, "grpc": GrpcUser}


class Recorder:
    """Chooses what is asked, and hears from locust what came of it: what `Seen` is made of."""

    def __init__(self, plan: Plan) -> None:
        self.answers: list[Answer] = []
        self.askers: list[GatewayUser] = []
        self._plan, self._random = plan, Random(plan.seed)
        self._kinds, self._shares = list(plan.mix), list(plan.mix.values())
        verbs = {kind.partition(" ")[0] for kind in plan.mix}
        self._questions = {verb: compared(plan, verb) for verb in verbs}
        self._began_s = time.perf_counter()

    @property
    def now_s(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._began_s

    def users(self, environment: Environment) -> dict[str, GatewayUser]:
        """One of each form that is asked in: the connections of a caller."""
        forms = {kind.partition(" ")[2] for kind in self._plan.mix}
        made = {form: _user(FORMS[form], self._plan)(environment) for form in forms}
        self.askers.extend(made.values())
        return made

    def ask(self, users: dict[str, GatewayUser], due_s: float) -> None:
        """One request. Whatever fails is recorded, and goes on: none must vanish from the figures."""
        (kind,) = self._random.choices(self._kinds, self._shares)
        verb, _, form = kind.partition(" ")
        sent_s = self.now_s
        context = {"kind": kind, "due_s": due_s, "lag_s": sent_s - due_s}
        try:
            users[form].ask(self._random.choice(self._questions[verb]), context)
        except Exception as error:
            self.note(1e3 * (self.now_s - sent_s), error, context)

    def note(self, response_time: float, exception: Exception | None, context: Any, **_: Any) -> None:
        """A listener of locust's event `request`."""
        error = wrong = ""
        if isinstance(exception, WrongAnswerError):
            wrong = str(exception)
        elif exception is not None:
            error = str(exception) if isinstance(exception, RefusedError) else _name(exception)
        took_s = context["lag_s"] + response_time / 1e3
        self.answers.append(Answer(**context, took_s=took_s, error=error, wrong=wrong))


def _name(error: Exception) -> str:
    """What it was before geventhttpclient ran out of retries, of which it has none."""
    return type(getattr(error, "original", None) or error).__name__


def _user(base: type[GatewayUser], plan: Plan) -> type[GatewayUser]:
    """One that asks as it is told instead of reading what the server has."""

    def prepare(self: GatewayUser, _: object) -> None:
        self.headers = {}
        if isinstance(self, GrpcUser):
            self.connect(plan.grpc or "")

    timeouts = dict.fromkeys(("network_timeout", "connection_timeout", "timeout_s"), plan.timeout_s)
    of_plan = {"host": f"http://{plan.http}", "check_every": plan.check_every, "concurrency": CONNECTIONS}
    return type(base.__name__, (base,), {**of_plan, **timeouts, "prepare": prepare})


def caller(recorder: Recorder, plan: Plan) -> type[User]:
    """Closed where the plan's phases have users, else open."""
    is_open = plan.phases[0].users is None

    class Caller(User):
        def __init__(self, environment: Environment) -> None:
            super().__init__(environment)
            self.users = recorder.users(environment)

        @task
        def ask(self) -> None:
            if not is_open:
                return recorder.ask(self.users, recorder.now_s)
            requests = gevent.pool.Group()
            for due_s in arrivals(plan.phases, Random(plan.seed)):
                gevent.sleep(max(due_s - recorder.now_s, 0))
                requests.spawn(recorder.ask, self.users, due_s)
            requests.join()
            raise StopUser

    return Caller


def run(plan: Plan) -> Seen:
    """Returns when the load is over and all is answered or has timed out."""
    recorder = Recorder(plan)
    environment = Environment(user_classes=[caller(recorder, plan)], stop_timeout=plan.timeout_s)
    environment.events.request.add_listener(recorder.note)
    runner = environment.create_local_runner()
    gc.collect()
    gc.freeze()  # the questions need not be looked through again and again while times are taken
    used_s = time.process_time()
    for phase in plan.phases if plan.phases[0].users else ():
        runner.start(phase.users or 1, spawn_rate=1e6)
        gevent.sleep(phase.seconds)
    if not plan.phases[0].users:
        runner.spawn_users({"Caller": 1}, wait=True)
    runner.quit()
    checked = sum(asker.checked for asker in recorder.askers)
    return Seen(tuple(recorder.answers), plan.seconds, checked, time.process_time() - used_s)


def main() -> None:
    asked, seen = map(Path, sys.argv[1:])
    seen.write_bytes(SEEN.dump_json(run(PLAN.validate_json(asked.read_bytes()))))


if __name__ == "__main__":
    main()
