"""Where people's transactions are: SQLAlchemy and Django."""

from __future__ import annotations

from mutants.mutant import Mutant

_ORM = "tests/integrations/test_orm_handlers.py"
_CALLERS = "tests/integrations/test_orm_callers.py"
_DJANGO = "tests/integrations/django/test_handlers.py"
_TABLES = "tests/integrations/django/test_tables.py"
_ADMIN = "tests/integrations/django/test_admin.py"
_COMMANDS = "tests/integrations/django/test_commands.py"

INTEGRATIONS = (
    Mutant(
        name="what was flushed before a swallowed rollback is committed",
        file="integrations/sqlalchemy/lent.py",
        old="        self.rolled_back = not self.over\n",
        new="        self.rolled_back = False\n",
        test=f"{_ORM}::test_no_mistake_commits_what_was_flushed[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a session is not flushed before the commit",
        file="integrations/sqlalchemy/lent.py",
        old="    session.flush()\n",
        new="",
        test=f"{_ORM}::test_each_message_takes_effect_once[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a message is stored through a session in AUTOCOMMIT",
        file="integrations/sqlalchemy/callers.py",
        old="if _is_autocommit(connection, driver):",
        new="if False:",
        test=f"{_CALLERS}::test_what_cannot_be_joined_is_refused_in_a_sentence[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a message is stored in another database",
        file="integrations/sqlalchemy/callers.py",
        old="    if not is_same:",
        new="    if False:",
        test=f"{_CALLERS}::test_what_cannot_be_joined_is_refused_in_a_sentence[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="what Django would roll back is committed",
        file="integrations/django/lent.py",
        old="        if self.needs_rollback:",
        new="        if False:",
        test=f"{_DJANGO}::test_no_mistake_commits_what_came_before[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="on_commit is never called",
        file="integrations/django/handlers.py",
        old="        for _, call, _ in hooks:",
        new="        for _, call, _ in hooks[:0]:",
        test=f"{_DJANGO}::test_on_commit_comes_after_our_commit[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="the ORM keeps its own connection in a handler",
        file="integrations/django/handlers.py",
        old="            connections[self._using] = lent\n",
        new="",
        test=f"{_DJANGO}::test_each_message_takes_effect_once[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="of two migrators the second does not wait",
        file="integrations/django/tables.py",
        old="""            cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"{prefix}migration"])""",
        new="            pass",
        test=f"{_TABLES}::test_two_migrators_at_once[postgres]",
        store="postgres",
    ),
    Mutant(
        name="an inbox that comes later has no tables",
        file="integrations/django/tables.py",
        old="    if behind and are_all_recorded(using):",
        new="    if False:",
        test=f"{_TABLES}::test_an_inbox_that_comes_later_gets_its_tables[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="the admin shows texts of errors to all who look",
        file="integrations/django/admin.py",
        old="""event.error if may_read else event.error and kind_of(event.error)""",
        new="event.error",
        test=f"{_ADMIN}::test_each_sees_what_their_role_allows[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="the admin lets all who look change messages",
        file="integrations/django/admin.py",
        old="""        if not request.user.has_perm("onceward.operate_message"):""",
        new="        if False:",
        test=f"{_ADMIN}::test_each_sees_what_their_role_allows[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="an id is markup in the admin",
        file="integrations/django/templates/admin/onceward/messages.html",
        old="<td>{{ row.id }}</td>",
        new="<td>{{ row.id|safe }}</td>",
        test=f"{_ADMIN}::test_nothing_out_of_a_message_is_markup[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="the admin waits for the transaction of its own request",
        file="integrations/django/admin.py",
        old="            served = transaction.non_atomic_requests(using=alias)(served)",
        new="            served = transaction.atomic(using=alias)(served)",
        test=f"{_ADMIN}::test_views_are_outside_of_the_requests_transaction[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="children of manage.py are started without Django",
        file="cli/processes.py",
        old="    again = Launch.current().command()",
        new="    again = Launch().command()",
        test=f"{_COMMANDS}::test_processes_are_started_again_by_manage[sqlite]",
        store="sqlite",
    ),
    Mutant(
        name="a webhook waits for the transaction of its own request",
        file="webhooks/wsgi.py",
        old="set(connections)",
        new="set()",
        test="tests/integrations/django/test_callers.py::test_a_webhook_view_is_outside_of_the_requests_transaction[sqlite]",
        store="sqlite",
    ),
)
