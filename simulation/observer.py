"""Watches what actors do: writes the history and counts how often each hard state was reached."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onceward.domain.identity import body_hash, stored_id
from onceward.errors import GuardFailed
from onceward.flow import Call, Commit, Each, Query
from onceward.message import Message
from onceward.steps.isolated import ALONE
from simulation.history import History, Holders, Reception, Removal, Run
from simulation.placing import Placing
from simulation.requests import Close

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.requests import Script
    from simulation.tasks import Task

FENCED = {"finish", "settle", "postpone", "put_off", "unclaim_tokens", "unclaim"}
CLAIMS = {"claim", "claim_outgoing", "claim_isolated"}
Look = Callable[["Task", Any, Any, Any], None]
Factory = Callable[[Call], "Script"]


class Observer:
    """The eyes of one history."""

    def __init__(self, history: History, database: Any) -> None:
        self.history, self._database = history, database
        self.counters: Counter[str] = Counter()
        self.step = 0
        self.caller_holds = True
        self.service = ""
        """Whose handler is being called."""
        self.script: Factory | None = None
        self._placing = Placing(history, database, self.sometimes)
        self._claiming: set[Any] = set()
        self._finishing: set[Any] = set()
        """Their transactions have finished messages and are not committed."""
        self._given_back: dict[Any, set[int]] = {}
        """The messages whose claims their transactions have taken off: a claim made along may take them anew."""
        self._leaving: dict[Any, list[int]] = {}
        self._redriven: set[int] = set()
        self._forgotten: set[tuple[str, bytes]] = set()
        self._claimed_at: dict[int, int] = {}
        self._looks_elsewhere: dict[tuple[Task, str], tuple[int, list[str]]] = {}
        """When a lane last looked who else knows a version, and who did then."""
        self._looks: dict[str, Look] = {
            "receive_direct": self._receive_direct,
            "enqueue": lambda *_: self.sometimes("direct: queued or failed in it"),
            "park": self._park,
            "claim_isolated": self._claim_isolated,
            "promote": self._promote,
            "add_attempt": self._attempt,
            "add_audit": self._audit,
            "add_worker": self._add_worker,
            "handled_elsewhere": self._handled_elsewhere,
            "unhandled_types": self._unhandled,
            "heartbeat": self._heartbeat,
            "redrive": self._redrive,
            "discard": self._discard,
            "forget_worker": self._forget_worker,
            "take_over": self._take_over,
            "adopt": lambda _t, _s, _p, answer: self.sometimes("unhandled message adopted") if answer else None,
            "remove_unhandled": lambda *_: self.sometimes("unhandled message handed to others"),
            "hand_on": self._hand_on,
            "retreat": lambda _t, _s, _p, answer: self.sometimes("number brought back") if answer else None,
            "hold": lambda *_: self.sometimes("gap: held"),
            "postpone": lambda _t, _s, _p, answer: self.sometimes("postponed, not charged") if answer else None,
            "detach": lambda _t, _s, _p, answer: self.sometimes("dead message left its key") if answer else None,
            "unclaim": lambda _t, _s, _p, answer: self.sometimes("rest of a batch unclaimed") if answer else None,
            "unclaim_tokens": lambda _t, _s, _p, answer: self.sometimes("unknown claim let go") if answer else None,
            "busy_keys": lambda _t, _s, _p, answer: self.sometimes("inline: key busy") if answer else None,
            "requeue_own": lambda *_: self.sometimes("inline: known after failure"),
            "effect": lambda _t, _s, _p, answer: self.sometimes("once: record found") if answer else None,
            "rollback_to_savepoint": lambda *_: self.sometimes("group stepped back"),
            "finish": lambda _t, session, _p, _a: self._finishing.add(session),
            "settle": self._settled,
            "drop_bodies": self._removed,
            "forget_messages": self._removed,
            "forget_runs": self._removed,
        }

    def sometimes(self, name: str) -> None:
        """A state worth reaching was reached."""
        self.counters[name] += 1

    def begin_call(self, task: Task, call: Call) -> tuple[list[Run], Script]:
        """A handler starts: a record for each message, and the script it follows."""
        messages: list[Message] = call.message if isinstance(call.message, list) else [call.message]
        lane, process = task.lane, task.process
        assert lane is not None
        assert process is not None
        assert self.script is not None
        runs = []
        for message in messages:
            number = message.data.get("n") if isinstance(message.data, dict) else None
            runs.append(
                Run(
                    step=self.step,
                    seq=message.seq,
                    consumer=message.consumer,
                    source=message.source,
                    id=message.id,
                    key=message.data.get("key") if isinstance(message.data, dict) else message.key,
                    number=number,
                    body_hash=body_hash(message.body),
                    attempt=message.attempt,
                    single=len(messages) == 1,
                    process=process.name,
                    worker=lane.owner or process.worker,
                )
            )
        self.history.runs += runs
        if call.handler.forgets_failures and "client" not in task.name:
            self.history.misdeeds.append(("nobody waits", f"request {messages[0].id} was handled by a worker"))
        if len(messages) > 1:
            self.sometimes("batch of several")
        if not lane.alone:
            self.sometimes("group of several")
        self.service = process.context.service
        return runs, self.script(call)

    def run_ended(self, run: Run, outcome: str) -> None:
        """A handler has ended."""
        run.outcome, run.ended = outcome, self.step

    def forget(self, session: Any) -> None:
        """The transaction of a session is gone."""
        self._leaving.pop(session, None)
        self._claiming.discard(session)
        self._placing.forget(session)
        self._finishing.discard(session)
        self._given_back.pop(session, None)

    def refused(self, part: Any, error: Exception) -> None:
        """A request was answered with an error of the database itself."""
        if isinstance(error, GuardFailed) and getattr(part, "name", "") == "finish":
            self.sometimes("zombie finish rejected")

    def performed(self, task: Task, session: Any, part: Any, answer: Any, *, began: bool) -> None:
        """A request was performed."""
        if isinstance(part, Commit | Close):
            if _commits(session, part):
                self._committed(session)
            elif isinstance(part, Close):
                self.forget(session)  # the caller rolls back
            return
        if isinstance(part, Query | Each):
            self._statement(task, session, part, answer, began=began)

    def _committed(self, session: Any) -> None:
        self._finishing.discard(session)
        self._given_back.pop(session, None)
        self.history.departed += self._leaving.pop(session, [])
        self._placing.committed(session, self.step)
        if session in self._claiming:
            self._claiming.discard(session)
            self.history.holders.append(Holders(self.step, self._database.claims(), self._database.clock.wall()))
            for seq in self._database.crowded():
                self.history.misdeeds.append(("not alone", f"message {seq} must run alone, and its process holds more"))

    def _statement(self, task: Task, session: Any, part: Any, answer: Any, *, began: bool) -> None:
        name = part.name
        self._placing.performed(session, part, answer, self.step)
        if name in FENCED:
            self._fenced(session, part, answer)
        if name in CLAIMS and answer:
            self._claimed(session, part, answer)
            self._claiming.add(session)
            if began:
                self.sometimes("next claim with a finish")
        elif name in CLAIMS and _has_open_circuit(task):
            self.sometimes("circuit open")
        elif name == "receive":
            self._receive(session, part, answer)
        look = self._looks.get(name)
        if look is not None:
            look(task, session, part, answer)

    def _settled(self, _task: Task, session: Any, _part: Query, answer: Any) -> None:
        if not answer:
            self.sometimes("zombie settle rejected")
        elif session in self._finishing:
            self.sometimes("failure settled with its group")

    def _fenced(self, session: Any, part: Query, answer: Any) -> None:
        """A guarded write took place: was the row really ours, by what is committed?"""
        name, params = part.name, part.params
        touched = params["seqs"] if name == "finish" else [row[0] for row in answer]
        if not touched:
            return
        tokens = set(params["tokens"]) if name == "unclaim_tokens" else {params["token"]}
        ours = {claim[3] for claim in self._database.claims() if claim[1] == params["worker"] and claim[2] in tokens}
        self._given_back.setdefault(session, set()).update(ours.intersection(touched))
        for seq in touched:
            if seq not in ours:
                self.history.misdeeds.append(("old token", f"{name} of message {seq} without its claim"))

    def _claimed(self, session: Any, part: Query, answer: Any) -> None:
        mine = (part.params["worker"], part.params["token"])
        claimed = {claim[3] for claim in self._database.claims() if claim[1:3] != mine}
        claimed -= self._given_back.get(session, set())
        for row in answer:
            self._claimed_at[row[0]] = self.step
            if row[2] is not None and row[4] is None and row[3] > row[0]:  # its place is behind its number
                self.sometimes("joined its key")
            if row[0] in claimed:
                self.history.misdeeds.append(("stolen claim", f"message {row[0]} was claimed while another had it"))

    def _redrive(self, _task: Task, _session: Any, part: Query, answer: Any) -> None:
        states = {seq: (state, token) for seq, state, token in self._database.queue()}
        if answer and states.get(part.params["seq"]) != ("dead", None):
            self.history.misdeeds.append(("redrive of the living", f"message {part.params['seq']} was not dead"))

    def _discard(self, _task: Task, _session: Any, part: Query, answer: Any) -> None:
        if answer and any(claim[3] == part.params["seq"] for claim in self._database.claims()):
            self.history.misdeeds.append(("discard of the running", f"message {part.params['seq']} was claimed"))

    def _removed(self, _task: Task, _session: Any, part: Query, answer: Any) -> None:
        """Retention has deleted something that nobody may need; it is committed later, or not."""
        numbers = {row[0] for row in answer}
        if not numbers:
            return
        self.sometimes(f"retention: {part.name}")
        before = self._database.tables()
        self.history.removals.append(Removal(part.name, numbers, self._database.clock.wall(), before))
        if part.name == "forget_runs":
            return
        needed = {row["seq"] for row in before["queue"]}
        needed |= {row["seq"] for row in before["quarantine"] if row["resolution"] is None}
        needed |= (
            {row["seq"] for row in before["effect"] if not row["done"]} if part.name == "forget_messages" else set()
        )
        self.history.misdeeds += [("needed", f"{part.name} of message {seq}") for seq in numbers & needed]
        if self.history.archive_first:
            bodies = {row["seq"] for row in before["body"]}
            lost = (numbers & bodies) - (self.history.archived if part.name == "drop_bodies" else set())
            self.history.misdeeds += [("not archived", f"{part.name} of message {seq}") for seq in lost]
        sources = {row["id"]: row["name"] for row in before["name"]}
        gone = {(sources[row["source"]], bytes(row["id"])) for row in before["ledger"] if row["seq"] in numbers}
        if part.name == "forget_messages":
            self._forgotten |= gone
        if any(one.ended < 0 and (one.source, stored_id(one.id)) in gone for one in self.history.receptions):
            self.sometimes("prune against duplicate")

    def _forget_worker(self, _task: Task, session: Any, part: Query, _answer: Any) -> None:
        self._leaving.setdefault(session, []).append(part.params["worker"])

    def _receive(self, session: Any, part: Any, answer: Any) -> None:
        if part.shared.get("token") is not None and answer:
            self._claiming.add(session)
            self.sometimes("inline: stored first")
        if answer and any(row["due_in"] is not None for row in part.records):
            self.sometimes("scheduled")
        self._inserted(part.shared.get("catalog"), answer)

    def _receive_direct(self, _task: Task, _session: Any, part: Each, answer: Any) -> None:
        self._inserted(part.shared["catalog"], answer)
        if answer:
            self.sometimes("inline: in one transaction")

    def _inserted(self, catalog: int | None, answer: Any) -> None:
        if not answer and catalog is not None and catalog != self._database.catalog_version():
            self.sometimes("outdated catalog")

    def received(self, reception: Reception, seq: int) -> None:
        """A receipt was returned."""
        self.sometimes(f"receipt: {reception.status}")
        if reception.status == "accepted" and (reception.source, stored_id(reception.id)) in self._forgotten:
            self.sometimes("forgotten, and came again")
        if reception.status == "duplicate":
            if any(claim[3] == seq for claim in self._database.claims()):
                self.sometimes("duplicate while in flight")
            if seq in self._redriven and any(row[0] == seq for row in self._database.queue()):
                self.sometimes("duplicate after redrive")

    def redriven(self, seq: int) -> None:
        """A dead message got a new budget."""
        self._redriven.add(seq)
        self.sometimes("redriven")

    def _hand_on(self, _task: Task, _session: Any, part: Query, _answer: Any) -> None:
        if part.params["seq"] in self._database.cases():
            self.sometimes("case handed on with its message")

    def _park(self, _task: Task, session: Any, _part: Query, answer: Any) -> None:
        for seq, *_ in answer:
            waits = session.peek_state(seq) == "waiting"
            self.sometimes("parked" if waits else "stepped back behind a later one")

    def _claim_isolated(self, _task: Task, _session: Any, part: Query, answer: Any) -> None:
        if answer:
            self.sometimes(
                "isolated message runs alone" if part.params["level"] == ALONE else "isolated messages beside others"
            )

    def _promote(self, _task: Task, session: Any, _part: Query, _answer: Any) -> None:
        if session.changed:
            self.sometimes("key handed over")

    def _attempt(self, task: Task, _session: Any, part: Query, _answer: Any) -> None:
        if part.params["kind"] == "crash":
            self.sometimes("crash charged" if part.params["charged"] else "crash in company, not charged")
        elif part.params["error"].startswith(("HandlerNotFound", "VersionUnknown")) and "lane" in task.name:
            self._unknown_version(task, part.params["seq"], part.params["error"])
        elif part.params["error"].startswith("VersionGap"):
            self.sometimes("gap: deadline over")
        else:
            self.sometimes("attempt charged")

    def _handled_elsewhere(self, task: Task, _session: Any, part: Query, answer: Any) -> None:
        line = part.params["line"]
        self._looks_elsewhere[task, line] = self.step, self._knowing(task, line)
        if answer[0][0]:
            self.sometimes("version left to others")

    def _unknown_version(self, task: Task, seq: int, error: str) -> None:
        """A message is charged because nobody knows its version: nobody else, when its lane looked?

        Who registers, or renews a lease that was over, after that look is later than "where none runs": the charge
        may follow seconds behind. A lane that has not looked since its claim is judged by who is there now.
        """
        version, kind, consumer = re.findall(r"version (\d+) of '(\w+)' for consumer '(\w+)'", error)[0]
        line = f"\n{consumer}\t{kind}\t{version}\n"
        looked, known = self._looks_elsewhere.get((task, line), (-1, []))
        if looked < self._claimed_at.get(seq, 0):
            known = self._knowing(task, line)
        self.sometimes("version nobody knows yet")
        if known:
            self.history.misdeeds.append(("version known elsewhere", f"message {seq}: {known[0]} knows it"))

    def _knowing(self, task: Task, line: str) -> list[str]:
        """The other processes that work, by what is committed, and have a handler for a version."""
        _, kind, version = line.strip().split("\t")
        now = self._database.clock.wall()
        rows = self._database.tables()["worker"]
        workers = {row["id"] for row in rows if row["alive_until"] > now and not row["inline"]}
        return sorted(
            one.name for one in self._processes(task) if one.worker in workers and one.knows(kind, int(version))
        )

    def _processes(self, task: Task) -> list[Process]:
        """The other processes."""
        found = {one.process for one in (self.tasks() if self.tasks else ())} - {task.process}
        return [process for process in found if process is not None]

    def _audit(self, _task: Task, _session: Any, part: Query, _answer: Any) -> None:
        self.sometimes(f"audit: {part.params['action']}")

    def _unhandled(self, task: Task, _session: Any, _part: Query, answer: Any) -> None:
        known = task.process.context.cache.catalog.version if task.process is not None else None
        if answer and known != self._database.catalog_version():
            self.sometimes("fan-out under an outdated catalog")

    def _add_worker(self, task: Task, _session: Any, _part: Query, answer: Any) -> None:
        number = answer[0][0]
        if any(other.worker == number for other in self._processes(task)):
            self.history.misdeeds.append(("shared number", f"worker {number} is the number of another process"))

    def _heartbeat(self, _task: Task, _session: Any, _part: Query, answer: Any) -> None:
        if not answer:
            self.sometimes("declared dead, registers anew")

    def _take_over(self, task: Task, _session: Any, part: Query, _answer: Any) -> None:
        self.sometimes("take-over")
        scheduler_tasks = self.tasks() if self.tasks else []
        for other in scheduler_tasks:
            owned = other.lane is not None and other.lane.owner == part.params["worker"]
            if other is not task and owned and other.frames and other.frames[-1].kind == "handler":
                self.sometimes("take-over while its handler runs")

    tasks: Callable[[], list[Task]] | None = None


def _has_open_circuit(task: Task) -> bool:
    if task.process is None:
        return False
    return any(handler.breaker is not None and handler.breaker.is_open for handler in task.process.context.registry)


def _commits(session: Any, part: Any) -> bool:
    """Whether a transaction is committed; that of a caller is committed by the caller."""
    return part.commits if isinstance(part, Close) else not session.is_caller
