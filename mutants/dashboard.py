"""The dashboard: roles, forged requests, sessions, what a page shows."""

from __future__ import annotations

from mutants.mutant import Mutant

_ROLES = "tests/dashboard/test_roles.py"
_ACCESS = "tests/dashboard/test_access.py"
_PAGES = "tests/dashboard/test_pages.py"


def _opened(path: str, old: str, new: str) -> Mutant:
    """A route that a lower role may use."""
    return Mutant(
        name=f"a {new} may use {path}",
        file="dashboard/app.py",
        old=f'Allowed("{path}", "{old}"',
        new=f'Allowed("{path}", "{new}"',
        test=f"{_ROLES}::test_every_route_with_every_role",
        store="sqlite",
    )


DASHBOARD: tuple[Mutant, ...] = (
    Mutant(
        name="a form may take for ever to come",
        file="dashboard/asked.py",
        old="asyncio.timeout(FORM_SECONDS)",
        new="asyncio.timeout(None)",
        test=f"{_PAGES}::test_a_form_that_does_not_come_is_given_up",
        store="sqlite",
    ),
    _opened("/act", "operator", "viewer"),
    _opened("/resolve", "operator", "reader"),
    _opened("/settle", "operator", "viewer"),
    _opened("/try", "operator", "reader"),
    _opened("/preview", "operator", "reader"),
    _opened("/quarantine/{case}", "reader", "viewer"),
    _opened("/quarantine/{case}/payload", "reader", "viewer"),
    _opened("/messages/{seq}/payload", "reader", "viewer"),
    Mutant(
        name="every role may do everything",
        file="dashboard/access.py",
        old="return ROLES.index(self.role) >= ROLES.index(role)",
        new="return self.role in ROLES and role in ROLES",
        test=f"{_ROLES}::test_every_route_with_every_role",
        store="sqlite",
    ),
    Mutant(
        name="a page of the dashboard that is in no table",
        file="dashboard/app.py",
        old='    Allowed("/metrics", "viewer", page=pages.metrics),\n',
        new='    Allowed("/metrics", "viewer", page=pages.metrics),\n    Allowed("/everything", "viewer", page=pages.metrics),\n',
        test=f"{_ROLES}::test_the_table_is_the_whole_dashboard",
        store="sqlite",
    ),
    Mutant(
        name="an action by GET",
        file="dashboard/app.py",
        old='methods=["GET"] if allowed.page else ["POST"])',
        new='methods=["GET"] if allowed.page else ["GET", "POST"])',
        test=f"{_ROLES}::test_the_table_is_the_whole_dashboard",
        store="sqlite",
    ),
    Mutant(
        name="a form needs no token",
        file="dashboard/access.py",
        old="return same_origin(request) and hmac.compare_digest(token.encode(), self.token(request, person).encode())",
        new="return same_origin(request)",
        test=f"{_ACCESS}::test_a_wrong_token_is_refused",
        store="sqlite",
    ),
    Mutant(
        name="a form may come from elsewhere",
        file="dashboard/access.py",
        old="return same_origin(request) and hmac.compare_digest(token",
        new="return hmac.compare_digest(token",
        test=f"{_ACCESS}::test_a_request_from_elsewhere_is_refused",
        store="sqlite",
    ),
    Mutant(
        name="a form may come from another site of the domain",
        file="dashboard/access.py",
        old='if site is not None and site != "same-origin":',
        new='if site == "cross-site":',
        test=f"{_ACCESS}::test_a_request_from_elsewhere_is_refused",
        store="sqlite",
    ),
    Mutant(
        name="signing in from elsewhere",
        file="dashboard/app.py",
        old="""        fields = await asked.form(request)
        if not same_origin(request):""",
        new="""        fields = await asked.form(request)
        if not request.headers:""",
        test=f"{_ACCESS}::test_nobody_is_signed_in_or_out_from_elsewhere",
        store="sqlite",
    ),
    Mutant(
        name="signing out from elsewhere",
        file="dashboard/app.py",
        old="""    async def _logout(self, request: Request) -> Response:
        if not same_origin(request):""",
        new="""    async def _logout(self, request: Request) -> Response:
        if not request.headers:""",
        test=f"{_ACCESS}::test_nobody_is_signed_in_or_out_from_elsewhere",
        store="sqlite",
    ),
    Mutant(
        name="the token of a session serves another session",
        file="dashboard/access.py",
        old="""f"{person.name}\\n{request.cookies.get(COOKIE, '')}".encode())""",
        new="""f"{person.name}".encode())""",
        test=f"{_ACCESS}::test_the_token_of_another_session_is_refused",
        store="sqlite",
    ),
    Mutant(
        name="a session never ends by itself",
        file="dashboard/access.py",
        old="if known is None or time.time() - int(began) > SESSION_SECONDS:",
        new="if known is None:",
        test=f"{_ACCESS}::test_sessions_end",
        store="sqlite",
    ),
    Mutant(
        name="a session outlives signing out",
        file="dashboard/access.py",
        old="return None if found is None or self._has_ended(found[1]) else found[0]",
        new="return None if found is None else found[0]",
        test=f"{_ACCESS}::test_signing_out_ends_the_session_in_every_process[postgres]",
        store="postgres",
    ),
    Mutant(
        name="a session needs no signature",
        file="dashboard/access.py",
        old="""if not content or not hmac.compare_digest(signature.encode(), self._signed("session", raw).encode()):""",
        new="""if not content or raw.count(b"\\n") != 2:""",
        test=f"{_ACCESS}::test_a_session_needs_its_signature",
        store="sqlite",
    ),
    Mutant(
        name="a session outlives a change of its secret",
        file="dashboard/access.py",
        old="people = sorted((one.name, one.role, one.secret) for one in credentials)",
        new="people = sorted((one.name, one.role) for one in credentials)",
        test=f"{_ACCESS}::test_a_change_of_the_credentials_ends_every_session",
        store="sqlite",
    ),
    Mutant(
        name="guessing secrets is not slowed down",
        file="dashboard/throttle.py",
        old="pause = min(LONGEST_LOCK, 2.0 ** min(beyond, 30)) if beyond else 0.0",
        new="pause = 0.0 * beyond",
        test=f"{_ACCESS}::test_guessing_is_slowed_down_and_names_are_not_told",
    ),
    Mutant(
        name="many addresses may guess at once",
        file="dashboard/throttle.py",
        old="return guess in self._trusted or not self._are_too_many()",
        new="return True",
        test=f"{_ACCESS}::test_many_addresses_guess_no_faster_than_a_few",
    ),
    Mutant(
        name="a name that was pointed at this machine may look",
        file="dashboard/access.py",
        old="if self._anonymous is not None and _is_local_name(request):",
        new="if self._anonymous is not None:",
        test=f"{_ACCESS}::test_without_credentials_it_is_read_only_and_local",
        store="sqlite",
    ),
    Mutant(
        name="every address is this machine's own",
        file="cli/dashboard.py",
        old='return ipaddress.ip_address(host.strip("[]")).is_loopback',
        new='return bool(ipaddress.ip_address(host.strip("[]")))',
        test=f"{_ACCESS}::test_loopback_is_what_only_this_machine_reaches",
    ),
    Mutant(
        name="secrets travel in the clear",
        file="cli/dashboard.py",
        old="        if not behind_tls:\n            raise Failure(",
        new="        if not behind_tls and not people:\n            raise Failure(",
        test=f"{_ACCESS}::test_a_host_beyond_this_machine_is_refused_without_a_credential",
        store="sqlite",
    ),
    Mutant(
        name="scripts can read the session",
        file="dashboard/app.py",
        old="            httponly=True,\n",
        new="",
        test=f"{_ACCESS}::test_cookies_are_out_of_reach_of_scripts_and_other_sites",
        store="sqlite",
    ),
    Mutant(
        name="what others wrote is run as a page",
        file="dashboard/shown.py",
        old="autoescape=True",
        new="autoescape=False",
        test=f"{_PAGES}::test_what_strangers_wrote_is_only_text_on_every_page",
        store="sqlite",
    ),
    Mutant(
        name="a viewer sees what errors quote",
        file="dashboard/shown.py",
        old='return text.partition("\\n")[0] if page["may_read"] else kind_of(text)',
        new='return text.partition("\\n")[0]',
        test=f"{_PAGES}::test_a_viewer_sees_nothing_that_may_quote_a_payload",
        store="sqlite",
    ),
    Mutant(
        name="a viewer finds keys by guessing",
        file="dashboard/pages.py",
        old='if chosen["key"] is not None and not view.may_read:',
        new='if chosen["key"] == "" and not view.may_read:',
        test=f"{_PAGES}::test_a_viewer_sees_nothing_that_may_quote_a_payload",
        store="sqlite",
    ),
    Mutant(
        name="reading a payload leaves no line in the audit",
        file="dashboard/actions.py",
        old="""    await view.admin.arecord_reading(seq, actor=actor_of(view), reason="payload, in the dashboard")\n""",
        new="",
        test=f"{_PAGES}::test_whoever_sees_a_payload_is_in_the_audit[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a change needs no reason",
        file="dashboard/actions.py",
        old="if not reason or len(reason) > LONGEST_REASON:",
        new="if len(reason) > LONGEST_REASON:",
        test=f"{_PAGES}::test_bulk_actions_are_previewed_reasoned_and_audited[postgres]",
        store="postgres",
    ),
)
