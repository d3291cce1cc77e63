"""Run a test with every order in which the requests of several clients can reach the API server.

An actor is a function that uses a store, in a thread. The thread stops before each request, and run() lets one actor at
a time send its next request. explore() repeats a story with each order of requests, depth first. most_switches limits
how often run() leaves an actor that could continue.
"""

import itertools
import threading

TIMEOUT_S = 60


class Stopped(BaseException):
    """Raised in an actor in place of a request or its answer, as if the actor's process was killed."""


class Actor:
    """A client of the store. crash: the number, from 1, of the request before which the actor is killed; 0: never.
    after: kill the actor between this request and its answer instead."""

    def __init__(self, name, store, function, crash=0, after=False):
        self.name, self.store, self.function, self.crash, self.after = name, store, function, crash, after
        self.result = self.error = None
        self.sent = 0
        self.turn, self.stops = threading.Semaphore(0), threading.Semaphore(0)
        self.over = False
        self.thread = threading.Thread(target=self._run, name=name)

    def start(self):
        expect = self.store.api._expect

        def stopped(*args, **named):
            self.stops.release()
            assert self.turn.acquire(timeout=TIMEOUT_S)
            self.sent += 1
            if self.sent == self.crash and not self.after:
                raise Stopped
            try:
                return expect(*args, **named)
            finally:
                if self.sent == self.crash:
                    raise Stopped

        self.store.api._expect = stopped
        self.thread.start()
        assert self.stops.acquire(timeout=TIMEOUT_S)

    def step(self):
        """Let the actor send one request. Return when the actor reaches its next request or its end."""
        self.turn.release()
        assert self.stops.acquire(timeout=TIMEOUT_S)

    def _run(self):
        try:
            self.result = self.function(self.store)
        except (Exception, Stopped) as e:
            self.error = e
        finally:
            del self.store.api._expect      # restores the method of the class
            self.over = True
            self.stops.release()


def run(actors, choices, most_switches):
    """Let the actors send their requests in the order of `choices`, then run each actor to its end. Return, for each
    step, (the number of actors that could continue, the number of the chosen actor)."""
    for actor in actors:
        actor.start()
    taken, current, switches = [], None, 0
    while live := [actor for actor in actors if not actor.over]:
        if current in live:
            live.remove(current)
            live = [current, *live] if switches < most_switches else [current]
        choice = choices[len(taken)] if len(taken) < len(choices) else 0
        taken.append((len(live), choice))
        switches += current in live and live[choice] is not current
        current = live[choice]
        current.step()
    for actor in actors:
        actor.thread.join(TIMEOUT_S)
    return taken


def explore(story, most_switches=2):
    """Run a story with each order of its actors' requests. Return the number of orders. story(number): makes new
    actors, and returns (actors, check). check(*actors): called after each run."""
    choices = []
    for number in itertools.count():
        actors, check = story(number)
        taken = run(actors, choices, most_switches)
        try:
            check(*actors)
        except BaseException as e:
            e.add_note(f"order {[choice for _, choice in taken]}: "
                       f"{[(actor.name, actor.result, actor.error) for actor in actors]}")
            raise
        while taken and taken[-1][1] + 1 >= taken[-1][0]:
            taken.pop()
        if not taken:
            break
        choices = [choice for _, choice in taken]
        choices[-1] += 1
    return number + 1
