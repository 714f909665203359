"""Mutants of the code that tests must catch; those that the simulation must catch are in `simulation/variants.py`."""

from mutants.adoption import ADOPTION
from mutants.around import AROUND
from mutants.commands import COMMANDS
from mutants.dashboard import DASHBOARD
from mutants.delays import DELAYS
from mutants.direct import DIRECT
from mutants.dynamodb import DYNAMODB
from mutants.files import FILES
from mutants.incidents import INCIDENTS
from mutants.inside import INSIDE
from mutants.integrations import INTEGRATIONS
from mutants.mysql import MYSQL
from mutants.order import ORDER
from mutants.postgres import POSTGRES
from mutants.redis import REDIS
from mutants.retention import RETENTION
from mutants.sinks import SINKS
from mutants.sources import SOURCES
from mutants.sqlite import SQLITE
from mutants.testing import TESTING
from mutants.typed import TYPED
from mutants.waking import WAKING
from mutants.webhooks import WEBHOOKS

ALL = (
    *WEBHOOKS,
    *DASHBOARD,
    *RETENTION,
    *FILES,
    *COMMANDS,
    *POSTGRES,
    *SQLITE,
    *MYSQL,
    *SOURCES,
    *SINKS,
    *REDIS,
    *ADOPTION,
    *TESTING,
    *TYPED,
    *DELAYS,
    *ORDER,
    *INTEGRATIONS,
    *DIRECT,
    *INSIDE,
    *AROUND,
    *DYNAMODB,
    *INCIDENTS,
    *WAKING,
)
