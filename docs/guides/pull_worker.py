#!/usr/bin/env python3
"""An external worker for Switchboard: it takes runs of `pull` tasks over HTTP, one at a time.

It needs Python 3.8 and nothing else. Put your own functions into HANDLERS and start it with

    SWITCHBOARD_URL=http://127.0.0.1:8080 SWITCHBOARD_API_KEY=sbk_... python3 pull_worker.py POOL

SIGTERM and SIGINT end it: the run under way is given back, and somebody else begins it anew.
"""

import argparse
import http.client
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid


class Stopped(Exception):
    """Raised by a handler that gave up because it was told to stop."""


class Permanent(Exception):
    """Raised by a handler when another attempt would fail too."""


class Refused(Exception):
    """The server said no, and it will say so again."""

    def __init__(self, status, problem):
        super().__init__(f"{status} {problem.get('code', '')}: {problem.get('detail', '')}")
        self.status = status


def count_words(run, stop):
    """An example. A handler gets the run and an event; it looks at the event now and then."""
    given = run["input"] or {}
    if "text" not in given:
        raise Permanent("the input has no text")
    # Stands for work that takes its time. `wait` returns at once when the worker must stop.
    if stop.wait(given.get("seconds", 0)):
        raise Stopped
    return {"words": len(given["text"].split())}


# What is done for which task.
HANDLERS = {"count-words": count_words}


class Server:
    """The HTTP side. All requests of a worker may be repeated as they are."""

    def __init__(self, url, key):
        self.url = url.rstrip("/") + "/api/v1"
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def post(self, path, body, timeout=10):
        """Asks once. Raises Refused for good, OSError when it is worth another try."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (408, 425, 429) or error.code >= 500:
                raise OSError(f"the server answers {error.code}") from error
            raise Refused(error.code, problem_of(error)) from error
        except (ValueError, http.client.HTTPException) as error:
            raise OSError("the answer was cut off") from error

    def insist(self, path, body, go_on, timeout=10):
        """Asks until there is an answer, or until `go_on()` is false; then returns None."""
        pause = 0.1
        while go_on():
            try:
                return self.post(path, body, timeout)
            except OSError as error:
                log(f"no answer yet: {error}")
                time.sleep(pause * random.uniform(0.5, 1))
                pause = min(pause * 2, 5)
        return None


class Held:
    """A leased run: heartbeats keep the lease while a handler works."""

    def __init__(self, server, run, lease):
        self.server, self.run, self.lease = server, run, lease
        self.path = f"/runs/{run['id']}"
        self.stop = threading.Event()  # set when the handler is to stop
        self.done = threading.Event()  # set when there is nothing to keep alive any more
        self.renewed = time.monotonic()

    def is_lost(self):
        """Only the own monotonic clock counts here: others may have taken the run after that time."""
        return time.monotonic() >= self.renewed + self.lease

    def body(self, **more):
        return {"fence": self.run["fence"], **more}

    def beat(self):
        while not self.done.wait(self.lease / 3):
            asked = time.monotonic()
            try:
                answer = self.server.post(f"{self.path}/heartbeat", self.body(lease=f"{self.lease}s"), self.lease / 3)
            except Refused as error:
                log(f"{self.name()} is lost: {error}")
                self.renewed = float("-inf")
            except OSError as error:
                log(f"{self.name()} missed a heartbeat: {error}")
            else:
                self.renewed = asked
                if answer["cancel_requested"]:
                    log(f"{self.name()} is to be cancelled")
                    self.stop.set()
            if self.is_lost():
                self.stop.set()
                return

    def name(self):
        return f"run {self.run['id']} fence {self.run['fence']}"

    def execute(self):
        """Does the work and reports how it ended."""
        taken_over = ", taken over from a worker that is gone" if self.run["reclaimed"] else ""
        log(f"{self.name()} starts attempt {self.run['attempt']}{taken_over}")
        heart = threading.Thread(target=self.beat, daemon=True)
        heart.start()
        how, more = self.work()
        self.report(how, **more)
        self.done.set()
        heart.join()

    def work(self):
        handler = HANDLERS.get(self.run["task_name"])
        try:
            if handler is None:
                raise Permanent(f"this worker knows no task {self.run['task_name']}")
            return "finish", {"result": handler(self.run, self.stop)}
        except Stopped:
            # Of a run that is to be cancelled, this is the end; any other one begins anew elsewhere.
            return "release", {}
        except Permanent as error:
            return "fail", {"error": str(error), "kind": "permanent"}
        except Exception as error:  # whatever a handler does, the worker goes on
            return "fail", {"error": f"{type(error).__name__}: {error}"}

    def report(self, how, **more):
        try:
            answer = self.server.insist(f"{self.path}/{how}", self.body(**more), lambda: not self.is_lost())
        except Refused as error:
            log(f"{self.name()} could not {how}: {error}")
            return
        if answer is None:
            log(f"{self.name()} could not {how}: the lease is over")
        else:
            log(f"{self.name()} ended by {how}: {answer['state']}")


class Worker:
    """Takes a run, executes it, takes the next one."""

    def __init__(self, server, pool, name, lease, wait):
        self.server, self.name, self.lease, self.wait = server, name, lease, wait
        self.path = f"/pools/{pool}/lease"
        self.stopping = threading.Event()
        self.request = None  # the lease request that has no answer yet
        self.held = None

    def loop(self):
        while not self.stopping.is_set():
            asked = time.monotonic()
            # The id makes the request repeatable: when an answer is lost, the same runs come again.
            self.request = {"request_id": str(uuid.uuid4()), "worker": self.name, "lease": f"{self.lease}s"}
            body = {**self.request, "wait": f"{self.wait}s"}
            answer = self.server.insist(self.path, body, lambda: not self.stopping.is_set(), self.wait + 10)
            runs = answer["runs"] if answer else []
            for run in runs:
                self.held = Held(self.server, run, self.lease)
            self.request = None
            if self.held and self.stopping.is_set():
                self.held.report("release")
            elif self.held:
                self.held.execute()
            elif time.monotonic() < asked + 1:
                # A replica that is being stopped lets nobody wait.
                self.stopping.wait(1)
            self.held = None

    def stop(self, patience):
        """Gives back what is held or was just leased."""
        self.stopping.set()
        request, held = self.request, self.held
        if held:
            held.stop.set()
        if request:
            answer = self.server.insist(self.path, request, time_limit(patience))
            for run in answer["runs"] if answer else []:
                Held(self.server, run, self.lease).report("release")


def problem_of(error):
    try:
        return json.load(error)
    except (ValueError, OSError, http.client.HTTPException):
        return {}


def time_limit(seconds):
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def log(text):
    print(text, flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("pool")
    arguments.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}", help="what runs show as their holder")
    arguments.add_argument("--lease", type=int, default=15, help="seconds that a lease holds without a heartbeat")
    arguments.add_argument("--wait", type=int, default=20, help="seconds that one request waits for a run")
    arguments.add_argument("--patience", type=int, default=10, help="seconds that a handler may take to stop")
    given = arguments.parse_args()
    server = Server(os.environ["SWITCHBOARD_URL"], os.environ["SWITCHBOARD_API_KEY"])
    worker = Worker(server, given.pool, given.name, given.lease, given.wait)

    told = threading.Event()
    failed = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())

    def work():
        try:
            worker.loop()
        except Exception as error:  # the key, the pool or the address is wrong
            failed.append(error)
        finally:
            told.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    log(f"worker {given.name} serves pool {given.pool}")
    told.wait()
    if failed:
        sys.exit(f"this worker cannot go on: {failed[0]}")
    waits = worker.request is not None
    worker.stop(given.patience)
    # A thread that waits for an answer is not waited for: what it asked for was given back.
    thread.join(0 if waits else given.patience)
    log("stopped")


if __name__ == "__main__":
    main()
