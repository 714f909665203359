"""The store in Redis: guards, order, what is looked at before, and what a server must be."""

from __future__ import annotations

from mutants.mutant import Mutant

SUITE = "tests/redis_store/test_suite.py::TestRedis"
EFFECTS = "tests/redis_store/test_effects.py"
STORE = "tests/redis_store/test_store.py"
CRASHES = "tests/redis_store/test_crashes.py"

REDIS: tuple[Mutant, ...] = (
    Mutant(
        name="Redis: a finish without its claim is committed",
        file="stores/redis/lua/4-finish.lua",
        old="if not carries(row, worker, token) then",
        new="if false then",
        test=f"{SUITE}::test_a_process_that_was_declared_dead_commits_nothing",
    ),
    Mutant(
        name="Redis: what cannot work is found when it runs",
        file="stores/redis/lua/4-finish.lua",
        old="if wrong then error(",
        new="if false then error(",
        test=f"{EFFECTS}::test_a_command_that_cannot_work_is_found_before_any_runs",
    ),
    Mutant(
        name="Redis: what is partly applied is tried again",
        file="stores/redis/lua/4-finish.lua",
        old="unclaimed(seq, row, { s = 'dead', t = false, a = row.a + 1 })",
        new="unclaimed(seq, row, { s = 'ready', t = false, a = row.a + 1 })",
        test=f"{EFFECTS}::test_what_fails_in_the_middle_is_partly_applied_and_never_repeated",
    ),
    Mutant(
        name="Redis: after a message that is partly applied the others are done as well",
        file="stores/redis/lua/4-finish.lua",
        old="if mine[seq] then break end",
        new="if mine[seq] then rows[seq] = rows[seq] end",
        test=f"{EFFECTS}::test_of_a_group_one_is_partly_applied_and_the_others_are_done_once",
    ),
    Mutant(
        name="Redis: a claim passes what comes before it in its key",
        file="stores/redis/lua/3-claim.lua",
        old="return { s = 'waiting', t = false } end",
        new="return nil end",
        test=f"{CRASHES}::test_many_workers_keep_the_order_of_keys {SUITE}::test_it_joins_its_key_behind_what_came_before",
    ),
    Mutant(
        name="Redis: a copy runs beside the message that is processed inline",
        file="stores/redis/lua/4b-direct.lua",
        old="if is_held(locks[#locks]) then",
        new="if false then",
        test=f"{CRASHES}::test_fifty_copies_at_once_inline_have_one_effect",
    ),
    Mutant(
        name="Redis: the last second is called durable",
        file="stores/redis/server.py",
        old='elif sync != "always":',
        new='elif sync == "no":',
        test=f"{STORE}::test_a_server_that_may_lose_something_is_weaker",
    ),
    Mutant(
        name="Redis: a cluster is a store",
        file="stores/redis/server.py",
        old='if info.get("redis_mode") == "cluster":',
        new="if False:",
        test=f"{STORE}::test_a_cluster_is_refused_with_the_reason",
    ),
    Mutant(
        name="Redis: a command may have more words than Lua takes",
        file="stores/redis/transaction.py",
        old="        if len(words) > MOST_WORDS:",
        new="        if len(words) > 10 * MOST_WORDS:",
        test=f"{EFFECTS}::test_a_command_of_more_words_than_lua_takes_is_refused_at_its_line",
    ),
    Mutant(
        name="Redis: what is refused after a watch is an error of the driver",
        file="stores/redis/sessions.py",
        old="        raise translated(answer)",
        new="        raise answer",
        test=f"{EFFECTS}::test_what_cannot_work_after_a_watch_is_an_error_of_the_handler",
    ),
    Mutant(
        name="Redis: what comes after a refused end is queued",
        file="stores/redis/sessions.py",
        old="""            with suppress(StoreError):
                self._send("DISCARD")
""",
        new="",
        test=f"{EFFECTS}::test_a_server_that_refuses_the_end_of_a_transaction_does_not_queue_what_comes_next",
    ),
    Mutant(
        name="Redis: a process that was declared dead commits inline",
        file="stores/redis/lua/4b-direct.lua",
        old="~= a.holder or not is_held(lock) then",
        new="~= a.holder then",
        test=f"{CRASHES}::test_a_process_that_was_declared_dead_commits_nothing_inline",
    ),
    Mutant(
        name="Redis: what a cancelled call holds outlives it",
        file="stores/redis/store.py",
        old="            if locked:  # by a task",
        new="            if False:  # by a task",
        test=f"{CRASHES}::test_a_key_is_free_when_the_call_that_held_it_was_cancelled",
    ),
)
