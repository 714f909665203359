"""The webhooks: signatures, answers, certificates, idempotency keys."""

from __future__ import annotations

from mutants.mutant import Mutant

_VERIFIERS = "tests/webhooks/test_verifiers.py"
_FAILING = "tests/webhooks/test_failing_stores.py"
_PAYPAL = "tests/webhooks/test_paypal.py"
_STRANGERS = "tests/webhooks/test_strangers.py"
_ANSWERS = "tests/webhooks/test_answers.py"
_MOUNTING = "tests/webhooks/test_mounting.py"
_KEYS = "tests/webhooks/test_idempotency.py"

_SIGNATURES = (
    Mutant(
        name="any signature is taken",
        file="webhooks/keyring.py",
        old="hmac.compare_digest(expected, signature) for",
        new="bool(signature) for",
        test=f"{_VERIFIERS}::test_a_changed_body_another_secret_or_no_signature_is_refused[github]",
    ),
    Mutant(
        name="a secret that has ended still signs",
        file="webhooks/keyring.py",
        old="if not key.secret.ended(now)]",
        new="]",
        test=f"{_VERIFIERS}::test_secrets_are_replaced_without_a_pause",
    ),
    Mutant(
        name="an empty secret starts",
        file="webhooks/keyring.py",
        old="if not isinstance(value, str) or not value.strip():",
        new="if not isinstance(value, str):",
        test=f"{_VERIFIERS}::test_without_a_secret_nothing_starts",
    ),
    Mutant(
        name="a signature of any age is taken",
        file="webhooks/request.py",
        old="if stamp < now - past:",
        new="if stamp < 0:",
        test=f"{_VERIFIERS}::test_the_time_is_checked_both_ways",
    ),
    Mutant(
        name="a signature of the future is taken",
        file="webhooks/request.py",
        old="if stamp > now + future:",
        new="if stamp > now * 2:",
        test=f"{_VERIFIERS}::test_the_time_is_checked_both_ways",
    ),
    Mutant(
        name="the time of Slack is not checked",
        file="webhooks/providers.py",
        old="""        check_time(seconds(stamp), now, past=self._tolerance, future=self._tolerance)
        secret = self._keys.match(f"v0:""",
        new="""        secret = self._keys.match(f"v0:""",
        test=f"{_VERIFIERS}::test_the_time_is_checked_both_ways",
    ),
    Mutant(
        name="a repeated header is read by its first value",
        file="webhooks/request.py",
        old="if len(values) != 1 or",
        new="if not values or",
        test=f"{_VERIFIERS}::test_a_repeated_header_is_refused",
    ),
    Mutant(
        name="another spelling of a signature is taken",
        file="webhooks/request.py",
        old="if base64.b64encode(value).decode() != text or (",
        new="if (",
        test=f"{_VERIFIERS}::test_other_spellings_of_a_signature_are_refused",
    ),
    Mutant(
        name="Slack's handshake is answered to anybody",
        file="webhooks/providers.py",
        old="""        secret = self._keys.match(f"v0:{stamp}:".encode() + request.body, [hex_bytes(value, DIGEST_BYTES)], now)
        event = fields_of(request.body)
        kind, challenge = text_of(event.get("type")), event.get("challenge")
        if kind""",
        new="""        event = fields_of(request.body)
        kind, challenge = text_of(event.get("type")), event.get("challenge")
        secret = "" if challenge else self._keys.match(f"v0:{stamp}:".encode() + request.body, [hex_bytes(value, DIGEST_BYTES)], now)
        if kind""",
        test=f"{_ANSWERS}::test_the_handshake_is_answered_and_stored_nowhere[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="two senders share a source",
        file="webhooks/hooks.py",
        old="if first.signers != verifier.signers:",
        new="if first.signers.isdisjoint(verifier.signers) and other == path:",
        test=f"{_ANSWERS}::test_two_senders_under_one_source_are_refused",
        store="sqlite",
    ),
    Mutant(
        name="an unsigned id is not said to be unsigned",
        file="webhooks/providers.py",
        old='return Event(request.headers.get("x-shopify-webhook-id"), topic, secret, ("id", "type"))',
        new='return Event(request.headers.get("x-shopify-webhook-id"), topic, secret, ("type",))',
        test=f"{_VERIFIERS}::test_each_sender_says_what_it_does_not_sign[shopify]",
    ),
)

_ANSWERED = (
    Mutant(
        name="a store that fails is answered with 200",
        file="webhooks/hooks.py",
        old='raise TryLater("the database is away", reason=f"{type(error).__name__}: {error}") from error',
        new='return Answer.of(HTTPStatus.OK, {"status": "accepted"})',
        test=f"{_FAILING}::test_whatever_the_store_raises_the_sender_is_told_to_come_again[asgi]",
    ),
    Mutant(
        name="a receiver that is set up wrongly answers with 200",
        file="webhooks/hooks.py",
        old='raise TryLater("the receiver is not ready", reason=str(error), seconds=30) from error',
        new='return Answer.of(HTTPStatus.OK, {"status": "accepted"})',
        test=f"{_FAILING}::test_whatever_the_store_raises_the_sender_is_told_to_come_again[wsgi]",
    ),
    Mutant(
        name="only an unreachable database is told to come again",
        file="webhooks/hooks.py",
        old="except StoreError as error:",
        new="except StoreUnavailable as error:",
        test=f"{_FAILING}::test_whatever_the_store_raises_the_sender_is_told_to_come_again[django]",
    ),
    Mutant(
        name="a bug of ours is answered with 200",
        file="webhooks/hooks.py",
        old='Answer.of(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the receiver failed"}',
        new='Answer.of(HTTPStatus.OK, {"error": "the receiver failed"}',
        test=f"{_FAILING}::test_whatever_the_store_raises_the_sender_is_told_to_come_again[django]",
    ),
    Mutant(
        name="under WSGI a failure is answered with 200",
        file="webhooks/wsgi.py",
        old="""start_response(f"{int(answer.status)} {answer.status.phrase}", headers)""",
        new="""start_response("200 OK", headers)""",
        test=f"{_FAILING}::test_a_store_that_is_away_is_a_503_at_once[sqlite-wsgi]",
        store="sqlite",
    ),
    Mutant(
        name="Django's view forgets the status",
        file="webhooks/wsgi.py",
        old="HttpResponse(answer.body, status=int(answer.status), headers",
        new="HttpResponse(answer.body, headers",
        test=f"{_FAILING}::test_a_store_that_is_away_is_a_503_at_once[postgres-django]",
        store="postgres",
    ),
    Mutant(
        name="Django's view asks for a token",
        file="webhooks/wsgi.py",
        old="view.csrf_exempt = True",
        new="view.csrf_exempt = False",
        test=f"{_MOUNTING}::test_as_a_django_view[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="what takes too long to store is answered with 200",
        file="webhooks/asgi.py",
        old='raise TryLater("storing takes too long") from None',
        new='return Answer.of(HTTPStatus.OK, {"status": "accepted"})',
        test=f"{_ANSWERS}::test_a_database_that_hangs_does_not_hang_the_sender",
        store="postgres",
    ),
    Mutant(
        name="a body is not counted while it comes",
        file="webhooks/asgi.py",
        old="if read.held + size > self.hooks.limits.body:",
        new="if size > self.hooks.limits.body:",
        test=f"{_STRANGERS}::test_chunks_are_counted_as_they_come",
        store="sqlite",
    ),
    Mutant(
        name="bodies in hand have no common limit",
        file="webhooks/asgi.py",
        old="if self._held + size > self.hooks.limits.memory:",
        new="if size > self.hooks.limits.memory:",
        test=f"{_STRANGERS}::test_bodies_in_hand_have_a_common_limit",
        store="sqlite",
    ),
    Mutant(
        name="under WSGI a body without a length has no limit",
        file="webhooks/wsgi.py",
        old="if announced is None and left <= 0:",
        new="if announced is None and left < 0:",
        test=f"{_MOUNTING}::test_a_wsgi_server_that_ends_the_input_needs_no_length[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a body may be shorter than was said",
        file="webhooks/asgi.py",
        old="if announced is not None and announced != read.held:",
        new="if announced is not None and announced < read.held:",
        test=f"{_MOUNTING}::test_a_server_that_lets_a_short_body_through_is_not_believed",
        store="sqlite",
    ),
    Mutant(
        name="two lengths are one too many, and taken",
        file="webhooks/hooks.py",
        old="""            raise Ambiguous
        length""",
        new="""            return None
        length""",
        test=f"{_MOUNTING}::test_two_lengths_that_another_server_lets_through_end_the_connection[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="every header is stored",
        file="webhooks/hooks.py",
        old="for name in (*KEPT, *verifier.keeps) if",
        new="for name in request.headers._values if",
        test=f"{_ANSWERS}::test_only_a_short_list_of_headers_is_stored[sqlite]",
        store="sqlite",
    ),
)

_UNCERTAIN = f"{_STRANGERS}::test_no_application_gets_a_request_whose_end_is_not_certain"
_SERVER = (
    Mutant(
        name="the web server listens on every address",
        file="runtime/http_server.py",
        old='(found["host"] or "127.0.0.1")',
        new='(found["host"] or "0.0.0.0")',
        test=f"{_STRANGERS}::test_addresses",
    ),
    Mutant(
        name="a request says itself where it comes from",
        file="runtime/http_connection.py",
        old='"client": client and client[:2],',
        new='"client": (dict(request.headers).get(b"x-forwarded-for", b"").decode(), 0),',
        test=f"{_STRANGERS}::test_what_a_request_says_about_its_origin_is_not_believed",
    ),
    Mutant(
        name="a request may have a length and chunks",
        file="runtime/framing.py",
        old="if lengths and codings:",
        new="if lengths and len(codings) > 1:",
        test=_UNCERTAIN,
    ),
    Mutant(
        name="a request may have two lengths",
        file="runtime/framing.py",
        old="if lengths and (len(lengths) > 1 or not",
        new="if lengths and (not",
        test=_UNCERTAIN,
    ),
    Mutant(
        name="a header may go on in a second line",
        file="runtime/framing.py",
        old="""if any(field.startswith((b" ", b"\\t")) for field in fields):""",
        new="""if any(field.startswith(b"\\t") for field in fields):""",
        test=_UNCERTAIN,
    ),
)

_CERTIFICATES = (
    Mutant(
        name="a kept certificate is not checked again",
        file="webhooks/certificates.py",
        old="            self._verify(host, certificates, now)  # also",
        new="            if not fresh:\n                self._verify(host, certificates, now)  # also",
        test=f"{_PAYPAL}::test_a_certificate_is_kept_and_checked_again",
    ),
    Mutant(
        name="a certificate is kept for ever",
        file="webhooks/certificates.py",
        old="fresh = bool(certificates) and 0 <= now - kept_at < KEPT_SECONDS",
        new="fresh = bool(certificates)",
        test=f"{_PAYPAL}::test_a_kept_certificate_is_fetched_again_after_a_day",
    ),
    Mutant(
        name="a certificate is fetched for every event",
        file="webhooks/certificates.py",
        old="fresh = bool(certificates) and 0 <= now - kept_at < KEPT_SECONDS",
        new="fresh = False",
        test=f"{_PAYPAL}::test_a_certificate_is_kept_and_checked_again",
    ),
    Mutant(
        name="the size of a certificate's key is not checked",
        file="webhooks/paypal.py",
        old="if not isinstance(key, RSAPublicKey) or key.key_size < SMALLEST_KEY_BITS:",
        new="if not isinstance(key, RSAPublicKey):",
        test=f"{_PAYPAL}::test_a_small_key_proves_nothing",
    ),
    Mutant(
        name="the kind of a certificate's key is not checked",
        file="webhooks/paypal.py",
        old="if not isinstance(key, RSAPublicKey) or key.key_size < SMALLEST_KEY_BITS:",
        new="if key.key_size < 256:",
        test=f"{_PAYPAL}::test_a_key_of_another_kind_proves_nothing",
    ),
    Mutant(
        name="a certificate may come from any host",
        file="webhooks/certificates.py",
        old="if host not in self._hosts or url",
        new='if url == "" or url',
        test=f"{_PAYPAL}::test_a_certificate_comes_from_nowhere_else",
    ),
    Mutant(
        name="a certificate may be for anybody",
        file="webhooks/certificates.py",
        old="verifier = policy.build_server_verifier(x509.DNSName(self._hosts[host]))",
        new="verifier = policy.build_server_verifier(x509.DNSName(certificates[0].subject.rdns[0].rfc4514_string()[3:]))",
        test=f"{_PAYPAL}::test_a_certificate_must_lead_to_a_root_be_paypals_and_be_valid",
    ),
    Mutant(
        name="anybody can make us fetch certificates without end",
        file="webhooks/certificates.py",
        old="        self._fetches.append(now)\n",
        new="",
        test=f"{_PAYPAL}::test_a_stranger_cannot_make_us_ask_again_and_again",
    ),
)

_IDEMPOTENCY = (
    Mutant(
        name="a key belongs to every tenant",
        file="integrations/idempotency.py",
        old='parts = f"{len(tenant.encode())}:{tenant}{len(key)}:{key}"',
        new='parts = f"{len(key)}:{key}"',
        test=f"{_KEYS}::test_a_key_belongs_to_its_tenant[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a key serves another request",
        file="integrations/idempotency.py",
        old='        "sha256": hashlib.sha256(exchange.body).hexdigest(),\n',
        new="",
        test=f"{_KEYS}::test_the_same_key_for_another_request_is_refused[postgres]",
        store="postgres",
    ),
    Mutant(
        name="an answer of 400 is remembered",
        file="integrations/idempotency.py",
        old="if response.status >= HTTPStatus.BAD_REQUEST:",
        new="if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:",
        test=f"{_KEYS}::test_a_failure_rolls_back_and_is_not_remembered",
        store="sqlite",
    ),
    Mutant(
        name="a key whose store fails is an error of ours",
        file="integrations/idempotency.py",
        old="except (StoreError, HandlerTimeout):",
        new="except HandlerTimeout:",
        test=f"{_FAILING}::test_an_idempotency_key_is_told_to_come_again",
        store="sqlite",
    ),
    Mutant(
        name="a key whose endpoint takes too long is an error of ours",
        file="integrations/idempotency.py",
        old="except (StoreError, HandlerTimeout):",
        new="except StoreError:",
        test=f"{_FAILING}::test_an_idempotency_key_is_told_to_come_again",
        store="sqlite",
    ),
    Mutant(
        name="cookies are part of the stored answer",
        file="integrations/idempotency.py",
        old='b"date", b"set-cookie", b"transfer',
        new='b"date", b"transfer',
        test=f"{_KEYS}::test_a_repetition_gets_the_first_answer_and_has_no_effect[sqlite]",
        store="sqlite",
    ),
)

WEBHOOKS: tuple[Mutant, ...] = (*_SIGNATURES, *_ANSWERED, *_SERVER, *_CERTIFICATES, *_IDEMPOTENCY)
