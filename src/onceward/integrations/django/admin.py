"""Pages of Django's admin: messages, their history, and what operators do to them.

Invariants: what is shown comes from `inbox.admin`, and is escaped by the templates. Payloads, keys and texts of errors
are for those who may read them, changes for those who may operate, with a reason that goes into the audit; what is
changed is what was shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import path, reverse

from onceward.admin.admin import Admin
from onceward.admin.decisions import ACTIONS, NAMES, ActionName, Selection, possible
from onceward.admin.messages import STATUSES
from onceward.domain import payload
from onceward.domain.discovery import name_of
from onceward.domain.fingerprint import kind_of
from onceward.errors import ConfigurationError, OncewardError
from onceward.inbox import Inbox
from onceward.integrations.django.inbox import inboxes
from onceward.integrations.django.models import Message
from onceward.integrations.django.project import project_inbox

PAGE = 100
AT_ONCE = 1000
"""A decision is about so many messages at most; what is beyond them comes next time."""
View = Callable[..., HttpResponse]


class Filters(forms.Form):
    """Which messages a list shows."""

    status = forms.ChoiceField(required=False, choices=[("", "any status"), *((one, one) for one in STATUSES)])
    type = forms.CharField(required=False, max_length=500)
    source = forms.CharField(required=False, max_length=500)
    key = forms.CharField(required=False, max_length=500)
    id = forms.CharField(required=False, max_length=1024)
    outgoing = forms.BooleanField(required=False)
    before = forms.IntegerField(required=False, min_value=1, max_value=2**63 - 1, widget=forms.HiddenInput)
    inbox = forms.CharField(required=False, widget=forms.HiddenInput)


class Decision(forms.Form):
    """What an operator does, and why."""

    action = forms.ChoiceField(choices=[(name, name) for name in NAMES], widget=forms.HiddenInput)
    seqs = forms.RegexField(r"\A[0-9]{1,19}(,[0-9]{1,19}){0,999}\Z", widget=forms.HiddenInput)
    inbox = forms.CharField(required=False, widget=forms.HiddenInput)
    out_of_order = forms.BooleanField(required=False, label="Also those whose key went on without them")
    reason = forms.CharField(max_length=500, widget=forms.TextInput(attrs={"size": 60}))


@admin.register(Message)
class MessageAdmin(admin.ModelAdmin):
    """Messages of the project's inboxes. They are rows of an inbox, not of a model: each page is a view of its own."""

    def get_urls(self) -> list[Any]:
        """The pages."""
        pages: dict[str, tuple[str, View]] = {
            "": ("changelist", self._list),
            "decide/": ("decide", self._decide),
            "<int:seq>/": ("change", self._message),
            "<int:seq>/payload/": ("payload", self._payload),
        }
        return [
            path(route, self._served(view), name=f"onceward_message_{name}") for route, (name, view) in pages.items()
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - Django's signature
        """Messages come from sources."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """They are not edited."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """To discard one is a decision with a reason."""
        return False

    def _served(self, view: View) -> View:
        """For those who may look; outside of ATOMIC_REQUESTS, as the inbox has connections of its own."""

        def seen(request: HttpRequest, **parts: Any) -> HttpResponse:
            if not self.has_view_permission(request):
                raise PermissionDenied
            try:
                return view(request, **parts)
            except OncewardError as error:
                return self._page(request, "problem", "onceward", {"problem": str(error)}, status=503)

        served: View = self.admin_site.admin_view(seen)
        for alias in connections:
            served = transaction.non_atomic_requests(using=alias)(served)
        return served

    def _page(
        self, request: HttpRequest, name: str, title: str, more: dict[str, Any], *, status: int = 200
    ) -> HttpResponse:
        known = {name_of(inbox): inbox.using for inbox in inboxes()}
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": title,
            "may_read": request.user.has_perm("onceward.read_message"),
            "may_operate": request.user.has_perm("onceward.operate_message"),
            "inboxes": known if len(known) > 1 else {},
            "chosen": request.GET.get("inbox", ""),
            **more,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"admin/onceward/{name}.html", context, status=status)

    def _list(self, request: HttpRequest) -> HttpResponse:
        may_read = request.user.has_perm("onceward.read_message")
        form = Filters(request.GET)
        if not form.is_valid():
            raise Http404("no such filter")
        asked = form.cleaned_data
        if asked["key"] and not may_read:
            raise PermissionDenied
        inbox = _chosen(asked["inbox"]).admin
        if asked["id"]:
            rows = [one for seq in inbox.find_anywhere(asked["id"]) if (one := inbox.message(seq))]
        else:
            wanted = {name: asked[name] or None for name in ("status", "type", "source", "key", "before")}
            rows = cast("Any", inbox.messages(**wanted, outgoing=asked["outgoing"], limit=PAGE))
        query = request.GET.copy()
        query["before"] = str(rows[-1].seq) if rows else ""
        more = {
            "form": form,
            "rows": [_shown(row, may_read=may_read) for row in rows],
            "older": query.urlencode() if len(rows) == PAGE else "",
            "stats": inbox.stats(),
            "actions": NAMES,
        }
        return self._page(request, "messages", "Messages", more)

    def _message(self, request: HttpRequest, seq: int, *, revealed: bool = False) -> HttpResponse:
        inbox = _chosen(request.GET.get("inbox", ""))
        told = inbox.admin.explain(seq)
        if told is None:
            raise Http404(f"there is no message {seq}")
        may_read = request.user.has_perm("onceward.read_message")
        events = [
            {
                "at": event.at,
                "kind": event.kind,
                "what": event.what,
                "error": event.error if may_read else event.error and kind_of(event.error),
                "detail": event.detail if may_read else "",
                "seq": event.seq,
            }
            for event in told.events
        ]
        detail = told.message
        more = {
            "detail": detail,
            "events": events,
            "same_id": told.same_id,
            "facts": _facts(detail, may_read=may_read),
            "revealed": revealed,
            "headers": dict(detail.headers) if revealed else {},
            "body": payload.readable(detail.body) if revealed else "",
            "result": detail.result if revealed else None,
            "actions": possible(detail.status),
        }
        return self._page(request, "message", f"Message {seq}", more)

    def _payload(self, request: HttpRequest, seq: int) -> HttpResponse:
        """Show it; that it was seen is in the audit before."""
        if request.method != "POST" or not request.user.has_perm("onceward.read_message"):
            raise PermissionDenied
        inbox = _chosen(request.GET.get("inbox", ""))
        inbox.admin.record_reading(seq, actor=request.user.get_username(), reason="payload, in Django's admin")
        return self._message(request, seq, revealed=True)

    def _decide(self, request: HttpRequest) -> HttpResponse:
        """Show what would be changed, by number or by filters; then, with a reason, change it."""
        if not request.user.has_perm("onceward.operate_message"):
            raise PermissionDenied
        if request.method != "POST":
            return self._preview(request)
        form = Decision(request.POST)
        inbox = _chosen(request.POST.get("inbox", ""))
        if not form.is_valid():
            return self._preview(request, form)
        said = form.cleaned_data
        verb: ActionName = said["action"]
        done = inbox.admin.apply(
            verb,
            [int(one) for one in said["seqs"].split(",")],
            reason=said["reason"],
            actor=request.user.get_username(),
            out_of_order=said["out_of_order"],
        )
        more = {"past": ACTIONS[verb].past, "changed": done.changed, "left": list(done.left.items())}
        return self._page(request, "decided", ACTIONS[verb].past.capitalize(), more)

    def _preview(self, request: HttpRequest, form: Decision | None = None) -> HttpResponse:
        asked = request.GET if form is None else request.POST
        verb = cast("ActionName", asked.get("action", ""))
        if verb not in NAMES:
            raise Http404("no such action")
        inbox = _chosen(asked.get("inbox", ""))
        found = _selected(inbox.admin, asked)
        if not found.seqs:
            return redirect(reverse("admin:onceward_message_changelist", current_app=self.admin_site.name))
        numbers = ",".join(map(str, found.seqs))
        given = {"action": verb, "seqs": numbers, "inbox": asked.get("inbox", "")}
        more = {
            "form": form or Decision(initial=given),
            "verb": verb,
            "meaning": ACTIONS[verb].meaning,
            "number": len(found.seqs),
            "kinds": [(number, *kind) for kind, number in found.kinds.most_common(20)],
            "more": found.more,
        }
        return self._page(request, "decide", f"{verb.capitalize()} {len(found.seqs)}", more)


def _chosen(named: str) -> Inbox:
    """The inbox that a page is about: that of the project, unless another of its own is named."""
    if not named:
        return project_inbox()
    for inbox in inboxes():
        if name_of(inbox) == named:
            return inbox
    raise Http404("no such inbox")


def _selected(inbox: Admin, asked: Any) -> Selection:
    """By number, or the dead that match the filters of the list."""
    seqs = asked.getlist("seq")[:AT_ONCE] or [one for one in asked.get("seqs", "").split(",") if one]
    if seqs:
        if not all(one.isascii() and one.isdigit() and len(one) < len(str(2**63)) for one in seqs):
            raise Http404("no such message")
        return inbox.select(*map(int, seqs))
    form = Filters(asked)
    if not form.is_valid():
        raise Http404("no such filter")
    filters = {name: form.cleaned_data[name] for name in ("type", "source", "key") if form.cleaned_data[name]}
    try:
        return inbox.select(limit=AT_ONCE, outgoing=form.cleaned_data["outgoing"], **filters)
    except ConfigurationError as error:
        raise Http404(str(error)) from error


def _shown(row: Any, *, may_read: bool) -> dict[str, Any]:
    error = getattr(row, "error", None) or ""
    return {
        "seq": row.seq,
        "status": row.status,
        "type": row.type,
        "source": row.source,
        "id": row.id,
        "consumer": row.consumer,
        "key": row.key if may_read else row.key and "•••",
        "received_at": row.received_at,
        "attempts": row.attempts,
        "error": (error.partition("\n")[0] if may_read else kind_of(error)) if error else "",
    }


def _facts(detail: Any, *, may_read: bool) -> dict[str, Any]:
    known = {
        "id": detail.id,
        "type": detail.type,
        "source": detail.source,
        "consumer": detail.consumer,
        "key": detail.key if may_read else detail.key and "•••",
        "to": detail.destination,
        "received": detail.received_at,
        "due": detail.due_at,
        "finished": detail.finished_at,
        "attempts": detail.attempts,
        "crashes": detail.crashes,
        "duplicates": detail.duplicates,
        "code": detail.code_version,
        "hash": detail.hash,
    }
    return {name: value for name, value in known.items() if value not in (None, "")}
