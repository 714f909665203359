"""Who takes part: each in its most reliable documented mode, with its settings and where they are documented.

`lease_seconds` is for how long a contender leaves messages to a silent worker, set as short for all as they allow, so
that a run is over soon; a suspension lasts half as long again. `patience_seconds` is how long nothing may be booked
before what is missing counts as lost or stuck: longer than its slowest way to bring a message back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Server = Literal["PostgreSQL", "MariaDB", "SQLite", "RabbitMQ", "Redis"]

LEASE_SECONDS, PATIENCE_SECONDS = 4.0, 40.0
LONGEST_SECONDS = 300
"""A run that goes on for longer is ended; what is not booked by then is stuck."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of the table."""

    name: str
    module: str
    """In `faults/contenders`."""
    servers: tuple[Server, ...]
    """The first has the effects."""
    settings: Mapping[str, Any]
    """What its module is given."""
    mode: str
    """What was chosen, for the page."""
    sources: tuple[str, ...]
    """Where the mode is documented: a file of this repository, or an address."""
    promises: frozenset[Literal["once", "order"]] = frozenset()
    """What it promises beyond at least once, in this mode: one effect for each id, order within an account."""
    at_least_once: bool = True
    """Whether it promises that nothing is lost."""
    packages: tuple[str, ...] = ()
    """In an environment of their own; the first must be there. None: it runs in onceward's."""
    lease_seconds: float = LEASE_SECONDS
    patience_seconds: float = PATIENCE_SECONDS

    @property
    def ours(self) -> bool:
        """Whether the last line counts it."""
        return self.module == "onceward"


BOTH: frozenset[Literal["once", "order"]] = frozenset(("once", "order"))
_OURS = {"attempts": 6, "first_retry_seconds": 1, "store_first_for_seconds": 5}
_ORDERED_QUEUE = {"x-single-active-consumer": True}
_QUORUM = {"x-delivery-limit": 5}
_RABBIT = "https://www.rabbitmq.com/docs/quorum-queues#poison-message-handling"
_STORED = '`receive` commits, three processes run handlers, `key="account"`, 6 attempts'


def _onceward(name: str, servers: tuple[Server, ...], mode: str, text: str, **more: Any) -> Contender:
    return Contender(
        f"onceward, {name}", "onceward", servers, {**_OURS, "mode": mode, **more}, text, ("docs/guarantees.md",), BOTH
    )


ONCEWARD = (
    _onceward("store-first", ("PostgreSQL",), "store-first", _STORED),
    _onceward(
        "direct from RabbitMQ",
        ("PostgreSQL", "RabbitMQ"),
        "direct",
        '`add_source(..., mode="direct")` on a quorum queue with a single active consumer, which keeps order',
        queue=_ORDERED_QUEUE,
    ),
    _onceward(
        "inline",
        ("PostgreSQL", "RabbitMQ"),
        "inline",
        "`process` called by a consumer of such a queue, which acknowledges then; workers beside it for retries",
        queue=_ORDERED_QUEUE,
    ),
    _onceward("store-first on MariaDB", ("MariaDB",), "store-first", _STORED),
    _onceward("store-first on SQLite", ("SQLite",), "store-first", _STORED),
)
BY_HAND = (
    Contender(
        "textbook inbox",
        "textbook",
        ("PostgreSQL", "RabbitMQ"),
        {"queue": _QUORUM},
        "id into a table with a unique key, effect, commit, acknowledge; a quorum queue that gives up after 5 "
        "redeliveries, to a dead-letter queue; one message in hand",
        ("faults/contenders/textbook.py", _RABBIT),
        frozenset(("once",)),
    ),
    Contender(
        "careless consumer",
        "careless",
        ("PostgreSQL", "RabbitMQ"),
        {"queue": _QUORUM},
        "look whether the id is known, book, remember it, acknowledge; the same queue",
        ("faults/contenders/careless.py", _RABBIT),
    ),
)
_CELERY = {"task_acks_late": True, "task_reject_on_worker_lost": True, "worker_prefetch_multiplier": 1}
_CELERY |= {"result_extended": True, "broker_connection_retry_on_startup": True}
_CELERY_TASK = {"max_retries": 6, "default_retry_delay": 1}
_CELERY_DOCS = "https://docs.celeryq.dev/en/stable/"
_LATE = "`acks_late`, `reject_on_worker_lost`, prefetch multiplier 1, `autoretry_for` with 6 retries, results in Redis"
PEERS = (
    Contender(
        "Celery on RabbitMQ",
        "celery",
        ("PostgreSQL", "RabbitMQ", "Redis"),
        {
            "app": {
                **_CELERY,
                "task_default_queue_type": "quorum",
                "task_default_exchange_type": "topic",
                "broker_transport_options": {"confirm_publish": True},
            },
            "task": _CELERY_TASK,
            "queue": {"x-delivery-limit": 20},
        },
        f"{_LATE}; a quorum queue with confirms, and the delivery limit of RabbitMQ 4 (20), then a dead-letter queue",
        (
            f"{_CELERY_DOCS}userguide/tasks.html",
            f"{_CELERY_DOCS}getting-started/backends-and-brokers/rabbitmq.html",
            _RABBIT,
        ),
        packages=("celery",),
    ),
    Contender(
        "Celery on Redis",
        "celery",
        ("PostgreSQL", "Redis"),
        {
            "app": {**_CELERY, "broker_transport_options": {"visibility_timeout": 10}},
            "task": _CELERY_TASK,
        },
        f"{_LATE}; `visibility_timeout` 10 s, which Celery looks at every 100 s; tasks of this transport were lost before (kombu #305)",
        (
            f"{_CELERY_DOCS}userguide/tasks.html",
            f"{_CELERY_DOCS}getting-started/backends-and-brokers/redis.html",
            "https://github.com/celery/kombu/issues/305",
        ),
        packages=("celery",),
        lease_seconds=10,
        patience_seconds=130,
    ),
    Contender(
        "Dramatiq on RabbitMQ",
        "dramatiq",
        ("PostgreSQL", "RabbitMQ"),
        {"actor": {"max_retries": 6, "min_backoff": 1000, "max_backoff": 1000}},
        "acknowledged after the actor, as always; `confirm_delivery`, 6 retries after 1 s, then its dead-letter queue",
        ("https://dramatiq.io/guide.html", "https://dramatiq.io/best_practices.html"),
        packages=("dramatiq",),
    ),
    Contender(
        "SAQ on Redis",
        "saq",
        ("PostgreSQL", "Redis"),
        {
            "job": {"retries": 7, "retry_delay": 1.0, "timeout": 4},
            "worker": {"concurrency": 2, "timers": {"sweep": 10}},
        },
        "the payment's id is the job's key, which holds while a job is not finished; 7 attempts, timeout 4 s, sweep every 10 s",
        ("https://saq-py.readthedocs.io/en/latest/job.html", "https://saq-py.readthedocs.io/en/latest/worker.html"),
        packages=("saq",),
        patience_seconds=100,
    ),
    Contender(
        "procrastinate",
        "procrastinate",
        ("PostgreSQL",),
        {
            "retry": {"max_attempts": 6, "wait": 1},
            "stalled_cron": "* * * * * */2",
            "worker": {"concurrency": 3, "update_heartbeat_interval": 1, "stalled_worker_timeout": 30},
        },
        "a lock for each account, 6 retries, stalled jobs retried every 2 s by a periodic task; no queueing lock, with which a stalled job cannot be retried while a copy of it waits",
        (
            "https://procrastinate.readthedocs.io/en/stable/howto/production/retry_stalled_jobs.html",
            "https://procrastinate.readthedocs.io/en/stable/howto/advanced/locks.html",
        ),
        frozenset(("order",)),
        packages=("procrastinate",),
    ),
    Contender(
        "PgQueuer",
        "pgqueuer",
        ("PostgreSQL",),
        {
            "retry": {"max_attempts": 6, "initial_delay_seconds": 1, "backoff_multiplier": 1.0},
            "batch_size": 2,
        },
        'a deduplication key for each payment while it waits or runs, `DatabaseRetryEntrypointExecutor` with 6 retries, `on_failure="hold"`, `heartbeat_timeout` 4 s',
        (
            "https://pgqueuer.readthedocs.io/en/latest/guides/reliability/",
            "https://pgqueuer.readthedocs.io/en/latest/guides/heartbeat/",
        ),
        packages=("pgqueuer",),
    ),
    Contender(
        "DBOS",
        "dbos",
        ("PostgreSQL",),
        {
            "attempts": 7,
            "retry_seconds": 1,
            "max_recovery_attempts": 5,
            "queue": {"partition_concurrency": 1, "worker_concurrency": 4, "polling_interval_sec": 0.1},
        },
        "a workflow under the payment's id, whose transaction is tried 7 times and recorded with its effect; a queue with a partition of concurrency 1 for each account; "
        "`max_recovery_attempts` 5; each process has an executor id of its own and recovers at its start",
        (
            "https://docs.dbos.dev/python/tutorials/workflow-tutorial",
            "https://docs.dbos.dev/python/tutorials/queue-tutorial",
            "https://docs.dbos.dev/python/reference/decorators",
        ),
        frozenset(("once",)),
        packages=("dbos",),
    ),
    Contender(
        "huey on Redis",
        "huey",
        ("PostgreSQL", "Redis"),
        {"task": {"retries": 6, "retry_delay": 1}},
        "6 retries, tasks that a shutdown interrupted enqueued again; it promises no delivery at least once, and no lease brings a task back",
        (
            "https://huey.readthedocs.io/en/latest/consumer.html#consumer-shutdown",
            "https://huey.readthedocs.io/en/latest/deployment.html",
        ),
        at_least_once=False,
        packages=("huey",),
    ),
    Contender(
        "Powertools idempotency",
        "powertools",
        ("PostgreSQL", "RabbitMQ", "Redis"),
        {"queue": _QUORUM, "expires_after_seconds": 3600},
        "`idempotent_function` on the id, records in Redis for an hour, in progress for as long as the call may take, around a consumer of such a queue",
        ("https://docs.powertools.aws.dev/lambda/python/latest/utilities/idempotency/", _RABBIT),
        packages=("aws-lambda-powertools",),
    ),
)
ALL = (*ONCEWARD, *BY_HAND, *PEERS)


def named(part: str) -> list[Contender]:
    """The contenders with this in their names; all of them for an empty one."""
    return [contender for contender in ALL if part.lower() in contender.name.lower()]
