"""Fetches the servers before the tests start: `python -m tests.servers`.

Kafka and Pulsar are not in Debian: where Maven cannot fetch them, the run goes on without them and says so. Of the
others all that is missing is named at once; with CI=true that is an error, else the tests run without.
"""

from __future__ import annotations

import sys

from tests.servers import install


def in_java(jars: install.Jars, instead: str) -> str:
    """Where a server in Java is, or why it is not."""
    try:
        return f"{install.java_program()}, {jars.libraries()}"
    except install.ServerMissing as missing:
        if not jars.missing():
            jars.miss(f"{jars.name} {jars.version} needs Java and Maven, which are not installed here")
        sys.stderr.write(f"{missing}\n")
        return f"{instead} ({jars.missing()})"


def main(only: list[str]) -> int:
    """Get them all; the answer is the exit code."""
    found = [in_java(install.KAFKA, "librdkafka's mock cluster"), in_java(install.PULSAR, "no Pulsar")]
    missing, reasons = [], []
    for server in [] if only == ["java"] else install.SERVERS:
        try:
            found.append(str(server.get()))
        except install.ServerMissing as reason:
            missing.append(server)
            reasons.append(str(reason))
    sys.stdout.write(f"servers: {', '.join(found)}\n")
    if not missing:
        return 0
    names = ", ".join(server.name for server in missing)
    if install.may_install():
        sys.stdout.write("\n".join(reasons) + "\n")
    sys.stdout.write(f"missing: {names}. Get all of them: {install.command(missing)}\n")
    if install.is_ci():
        sys.stdout.write("CI=true: a server that is missing is an error\n")
        return 1
    sys.stdout.write("The tests that need them are left out, and named at the end of the run\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
