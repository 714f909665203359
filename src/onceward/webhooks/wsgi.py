"""Webhooks as a WSGI application and as a Django view. The server before them limits how long a body may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from onceward.webhooks.hooks import Answer, Hooks
from onceward.webhooks.request import Headers, Refusal, Request

if TYPE_CHECKING:
    from onceward.webhooks.verifier import Verifier

Environment = Mapping[str, Any]


class Wsgi:
    """The webhooks of an inbox as a WSGI application; `django(path)` makes a view of one of them."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def __call__(self, environ: Environment, start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = str(environ.get("PATH_INFO", ""))
        answer = self.answer(environ, path, environ["wsgi.input"].read)
        headers = [*answer.headers.items(), ("content-length", str(len(answer.body)))]
        start_response(f"{int(answer.status)} {answer.status.phrase}", headers)
        return [answer.body]

    def django(self, path: str) -> Callable[..., Any]:
        """A Django view for the endpoint at `path`, free of CSRF checks: the signature is the proof of origin.

        And outside of ATOMIC_REQUESTS: what the sender gets a response for is committed by the inbox itself.
        """
        from django.db import connections  # noqa: PLC0415 - only where Django is

        def view(request: Any) -> Any:
            from django.http import HttpResponse  # noqa: PLC0415 - only where Django is

            answer = self.answer(request.META, path, request.read)
            return HttpResponse(answer.body, status=int(answer.status), headers=dict(answer.headers))

        # What Django's own decorators set.
        view.csrf_exempt = True  # type: ignore[attr-defined] # as above
        view._non_atomic_requests = set(connections)  # type: ignore[attr-defined] # noqa: SLF001 - as above
        return view

    def answer(self, environ: Environment, path: str, read: Callable[[int], bytes]) -> Answer:
        """Handle a request, and return the response."""
        source = ""
        try:
            pairs = _headers(environ)
            headers = Headers(pairs)
            size = sum(len(name) + len(value) for name, value in pairs)
            method = str(environ.get("REQUEST_METHOD", ""))
            verifier = self._hooks.admit(method, path, headers, count=len(pairs), size=size)
            source = verifier.source
            return self._take(verifier, Request(headers, self._body(environ, headers, read)))
        except Refusal as refusal:
            return self._hooks.refused(refusal, source)
        except Exception as error:  # noqa: BLE001 - a stranger's bytes must not decide what a server does about a bug
            return self._hooks.failed(error)

    def _take(self, verifier: Verifier, request: Request) -> Answer:
        return self._hooks.store(verifier, self._hooks.authenticate(verifier, request), request)

    def _body(self, environ: Environment, headers: Headers, read: Callable[[int], bytes]) -> bytes:
        announced = self._hooks.announced(headers)
        if announced is None and not environ.get("wsgi.input_terminated"):
            # Without either, nobody can say where the body ends.
            raise Refusal(HTTPStatus.LENGTH_REQUIRED, "send content-length")
        limit = self._hooks.limits.body
        left = limit + 1 if announced is None else announced
        parts = []
        while left > 0 and (part := read(left)):
            parts.append(part)
            left -= len(part)
        if announced is None and left <= 0:
            raise self._hooks.too_large()
        if announced is not None and left != 0:
            raise Refusal(HTTPStatus.BAD_REQUEST, "the body is not as long as was said")
        return b"".join(parts)


def _headers(environ: Environment) -> list[tuple[bytes, bytes]]:
    """The headers as CGI has them; repeated ones were joined by the server, and then fit no strict form."""
    found = []
    for name, value in environ.items():
        if name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if value not in ("", None):
                found.append((name.replace("_", "-"), str(value)))
        elif name.startswith("HTTP_"):
            found.append((name.removeprefix("HTTP_").replace("_", "-"), str(value)))
    return [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in found]
