"""Celery, Dramatiq and taskiq: a task's effect happens once, whatever becomes of its worker (R57)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import redis

if TYPE_CHECKING:
    from tests.recipes.conftest import Recipe

IDLE = 1_000
"""Milliseconds after which taskiq takes a task from a worker that has not acknowledged it."""

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True)
class Queue:
    """How the page of a task queue is played."""

    name: str
    server: str
    address: str
    worker: tuple[str, ...]
    """The command of the page; `{}` is its module."""
    starts: str
    """Code that starts the task with a given id, for order 7."""
    thanks: str
    """Code that publishes what the sink was given once more."""
    nudge: str = ""
    """Code that makes the broker look for what a dead worker held, where it needs that."""


CELERY = Queue(
    "celery",
    "rabbit_server",
    "amqp://localhost//",
    ("celery", "-A", "{}", "worker", "--concurrency", "2", "--loglevel", "INFO"),
    "import tasks; tasks.order_paid.apply_async(kwargs={'order_id': 7}, task_id='task-1')",
    "import tasks; tasks.thank.apply_async(kwargs={'order_id': 7}, task_id=ID)",
)
DRAMATIQ = Queue(
    "dramatiq",
    "rabbit_server",
    "amqp://localhost/",
    ("dramatiq", "{}", "--processes", "1", "--threads", "2"),
    "import tasks; m = tasks.order_paid.message(7); tasks.broker.enqueue(m.copy(message_id='task-1'))",
    "import tasks; m = tasks.thank.message(7); tasks.broker.enqueue(m.copy(message_id=ID))",
)
_KICK = """
import asyncio, tasks
from taskiq.kicker import AsyncKicker
asyncio.run(AsyncKicker(task_name=NAME, broker=tasks.broker, labels={}).with_task_id(ID).kiq(order_id=7))
"""
TASKIQ = Queue(
    "taskiq",
    "redis_server",
    '"redis://localhost:6379/0", consumer_id="0", idle_timeout=60_000',
    ("taskiq", "worker", "{}:broker", "--workers", "1"),
    _KICK.replace("NAME", "'order_paid'").replace("ID", "'task-1'"),
    _KICK.replace("NAME", "'thank'"),
    _KICK.replace("NAME", "'thank'").replace("ID", "'another'"),
)
QUEUES = [CELERY, DRAMATIQ, TASKIQ]


@pytest.fixture(params=QUEUES, ids=lambda queue: queue.name)
def queue(request: pytest.FixtureRequest) -> Queue:
    """Each of them."""
    chosen: Queue = request.param
    return chosen


@pytest.fixture
def tasks(queue: Queue, recipe: Callable[..., Recipe], request: pytest.FixtureRequest) -> Recipe:
    """The program of its page, on a server that has nothing of another test's."""
    server = request.getfixturevalue(queue.server)
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    ours = (
        server.address
        if queue is not TASKIQ
        else f'"{server.address}", consumer_id="0", idle_timeout={IDLE}, queue_name="{name}"'
    )
    made: Recipe = recipe(queue.name, {queue.address: ours})
    made.name = name
    program = made.folder / "tasks.py"
    if queue is CELERY:
        program.write_text(program.read_text() + f"\napp.conf.task_default_queue = {name!r}\n")
    if queue is DRAMATIQ:
        text = program.read_text().replace("@dramatiq.actor", f"@dramatiq.actor(queue_name={name!r})")
        program.write_text(text)
    return made


def worker(queue: Queue, module: str) -> list[str]:
    """The command that runs a worker of a module."""
    return [word.format(module) for word in queue.worker]


def nudge(queue: Queue, tasks: Recipe, server: Any) -> None:
    """taskiq-redis looks for what a dead worker held when a new task comes, and takes what has been idle by then."""
    if not queue.nudge:
        return
    with redis.Redis.from_url(server.address) as client:
        (stream,) = client.scan_iter(_TYPE="stream", match=f"*{tasks.name}*")

        def idle() -> bool:
            (held,) = client.xpending_range(stream, "taskiq", "-", "+", 1)
            return bool(held["time_since_delivered"] > IDLE)

        tasks.wait_for(idle, "the task, left by its worker")
    tasks.run(queue.nudge)


def test_a_task_that_comes_twice_has_one_effect(queue: Queue, tasks: Recipe) -> None:
    tasks.start(*worker(queue, "tasks"))
    tasks.run(queue.starts)
    tasks.wait_for(lambda: tasks.rows("shipped") == [7], "the effect")
    tasks.run(queue.starts)
    tasks.wait_for(lambda: tasks.copies(queue.name, "task-1") == 1, "the copy")
    assert tasks.rows("shipped") == [7]


def test_a_task_that_was_started_before_the_first_worker_is_not_lost(queue: Queue, tasks: Recipe) -> None:
    """The group of taskiq's workers is made by the first of them; the others' queues are there with the first task."""
    tasks.run(queue.starts)
    tasks.start(*worker(queue, "tasks"))
    tasks.wait_for(lambda: tasks.rows("shipped") == [7], "the effect")


def test_a_handler_starts_a_task_under_the_id_of_its_message(queue: Queue, tasks: Recipe) -> None:
    """What the relay publishes twice is one task: a copy of it under that id has no effect."""
    tasks.start(*worker(queue, "tasks"))
    tasks.start("onceward", "run", "tasks:inbox")
    tasks.run(queue.starts)
    tasks.wait_for(lambda: tasks.rows("thanked") == [7], "the task that the handler started")
    (sent,) = tasks.ids("tasks.thank" if queue is CELERY else "thank", outgoing=True)
    assert tasks.ids("order.thanked") == [sent]
    tasks.run(queue.thanks.replace("ID", repr(sent)))
    tasks.wait_for(lambda: tasks.copies(queue.name, sent) >= 1, "the copy")
    assert tasks.rows("thanked") == [7]


def test_a_worker_that_dies_after_its_commit_has_one_effect(
    queue: Queue, tasks: Recipe, request: pytest.FixtureRequest
) -> None:
    """Killed with -9 between commit and acknowledgement: the task comes again, to a worker that knows it."""
    tasks.dying("tasks")
    first = tasks.start(*worker(queue, "dying"))
    tasks.run(queue.starts)
    tasks.wait_for((tasks.folder / "died").exists, "the death of the worker")
    tasks.kill(first)
    assert tasks.rows("shipped") == [7]
    tasks.start(*worker(queue, "tasks"))
    nudge(queue, tasks, request.getfixturevalue(queue.server))
    tasks.wait_for(lambda: tasks.copies(queue.name, "task-1") >= 1, "the task, delivered again")
    assert tasks.rows("shipped") == [7]


def test_a_worker_that_dies_before_its_commit_loses_nothing(
    queue: Queue, tasks: Recipe, request: pytest.FixtureRequest
) -> None:
    """Killed with -9 while it waits for the database: the task comes again, and has its effect then."""
    tasks.migrate()
    tasks.beginning("tasks")
    with closing(tasks.connect()) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        first = tasks.start(*worker(queue, "beginning"))
        tasks.run(queue.starts)
        tasks.wait_for((tasks.folder / "began").exists, "the task, begun")
        tasks.kill(first)
    assert tasks.rows("shipped") == []
    tasks.start(*worker(queue, "tasks"))
    nudge(queue, tasks, request.getfixturevalue(queue.server))
    tasks.wait_for(lambda: tasks.rows("shipped") == [7], "the effect, at the second delivery")
