"""The programs that these tests start, stop and kill; each is a function of its job."""

from __future__ import annotations

from datetime import timedelta

from onceward import Settings
from tests.contract.harness import Shop
from tests.nursery import Job
from tests.order.ledger import Clerk, Marks, handle_all


def work(job: Job) -> None:
    """Be a worker until told to stop."""
    given = job.arguments
    settings = Settings(
        lease=timedelta(seconds=given.get("lease", 15)), poll=timedelta(seconds=0.05), group_time=timedelta(minutes=1)
    )
    shop = Shop(given["url"], given["kind"], migrate=False, settings=settings)
    clerk = Clerk(Marks(given["marks"]), given["folder"], together=given.get("together", 0), victim=True)
    handle_all(shop, clerk, **given.get("options", {}))
    job.say("ready")
    shop.inbox.run(concurrency=given.get("concurrency", 1), process=given.get("process", ""))
    shop.inbox.close()
