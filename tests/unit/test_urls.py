"""Addresses as SQLAlchemy writes them, read as the stores' own; all others stay as they are."""

from __future__ import annotations

import pytest
from sqlalchemy import URL, create_engine

from onceward import ConfigurationError
from onceward.domain.urls import of_engine, plain

READ = {
    "postgresql+psycopg://u:p%40@host:5433/shop": "postgresql://u:p%40@host:5433/shop",
    "postgresql+asyncpg://host/shop?ssl=require&prepared_statement_cache_size=0": "postgresql://host/shop?sslmode=require",
    "postgresql+psycopg2://host/shop?sslmode=disable": "postgresql://host/shop?sslmode=disable",
    "postgresql+psycopg://u@/shop?host=a:5432&host=b:5433": "postgresql://u@/shop?host=a%2Cb&port=5432%2C5433",
    "postgresql+psycopg://u@/shop?host=%2Fvar%2Frun": "postgresql://u@/shop?host=%2Fvar%2Frun",
    "mysql+asyncmy://u:p@h/shop?charset=utf8mb4": "mysql://u:p@h/shop?charset=utf8mb4",
    "mariadb+pymysql://h:3307/shop": "mariadb://h:3307/shop",
    "sqlite+aiosqlite:///shop.db": "sqlite:///shop.db",
    "sqlite+pysqlite:////data/shop.db?timeout=30": "sqlite:////data/shop.db",
    "sqlite+aiosqlite://": "sqlite://",
    "sqlite:///shop.db?timeout=30": "sqlite:///shop.db",
    "sqlite:///a+b.db?x=1": "sqlite:///a+b.db",
    "sqlite+pysqlite:///file:shop.db?uri=true": "sqlite:///shop.db",
    "sqlite:///file:///data/my%20shop.db?mode=rwc&uri=true": "sqlite:////data/my shop.db",
}
LEFT = [
    "postgresql://host/shop?ssl=1",
    "sqlite://",
    "host=a dbname=b",
    "mysql://h/shop",
    "oracle+oracledb://h/shop",
]


@pytest.mark.parametrize("url", READ)
def test_a_url_that_names_a_driver_is_read(url: str) -> None:
    assert plain(url) == READ[url]


@pytest.mark.parametrize("url", LEFT)
def test_every_other_address_is_left_alone(url: str) -> None:
    assert plain(url) == url


@pytest.mark.parametrize(
    ("given", "file"),
    [
        ("sqlite:///shop.db?timeout=30", "shop.db"),
        ("sqlite+aiosqlite:///shop.db", "shop.db"),
        ("sqlite:////data/shop.db", "/data/shop.db"),
        ("sqlite:///file:shop.db?mode=rwc&uri=true", "shop.db"),
        ("sqlite:///my shop 100%.db", "my shop 100%.db"),
    ],
)
def test_the_url_of_an_engine_is_the_file_that_it_opens(given: str, file: str) -> None:
    """Its text is percent-encoded since SQLAlchemy 2.1: read as a path, that would be another database."""
    url = create_engine(given).url if "aiosqlite" not in given else URL.create("sqlite+aiosqlite", database=file)
    assert of_engine(url) == f"sqlite:///{file}"


def test_an_engine_without_a_file_is_in_memory() -> None:
    assert of_engine(create_engine("sqlite://").url) == "sqlite://"
    assert of_engine(URL.create("postgresql+psycopg", "u", "p@", "h", database="shop")) == "postgresql://u:p%40@h/shop"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("sqlite+pysqlcipher://:secret@/shop.db", "what pysqlcipher opens is not a plain SQLite file"),
        ("sqlite+libsql://shop.example", "what libsql opens is not a plain SQLite file"),
        ("sqlite:///file:shop?mode=memory&cache=shared&uri=true", "is a database in memory, which no other engine"),
    ],
)
def test_what_is_no_file_is_refused(url: str, sentence: str) -> None:
    """Opened as a file it would be another database than the program's."""
    with pytest.raises(ConfigurationError, match=sentence) as caught:
        plain(url)
    assert "secret" not in str(caught.value)
