"""Whose certificate is believed, through ``raycdc check`` and ``run``: each client against each kind of certificate.

Clients reach a server as ``127.0.0.1``, for which its certificate is, or as ``0.0.0.0``, which the kernel takes for the
same. The test server of MongoDB speaks no TLS, so ours stands in front of it. Servers that are refused need nobody
behind their TLS: no byte comes through.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from raycdc.sandbox.servers.certificates import write_certificates
from raycdc.sandbox.servers.iceberg_rest import IcebergRestServer
from raycdc.sandbox.servers.mongodb import MongoDb
from raycdc.sandbox.servers.s3 import MotoServer
from tests.integration.rogue_mysql import Turncoat
from tests.integration.rogue_postgres import BadCertificate
from tests.support.forked_commands import completed
from tests.support.servers.gate import tls_in_front

pytestmark = pytest.mark.server

DATAGEN = '[source]\ntype = "datagen"\ntables = ["shop.orders"]\nrows = 1\nevents = 0\n'
FILES = '[sink]\ntype = "jsonl"\npath = "out"\n'
STORE = '[storage]\nregion = "us-east-1"\naccess_key_id = "test"\nsecret_access_key = "test"\n'
#: The clients, by the section in which they are, and what names the authorities there.
CLIENTS = {
    "mysql source": "source.tls.ca",
    "mysql sink": "sink.tls.ca",
    "postgresql sink": "sink.tls.ca",
    "mongodb source": "tlsCAFile of source.uri",
    "mongodb sink": "tlsCAFile of sink.uri",
    "kafka source": 'source.properties."ssl.ca.location"',
    "kafka sink": 'sink.properties."ssl.ca.location"',
    "iceberg sink": 'sink.catalog.properties."ssl.cabundle"',
    "delta sink": "the variable SSL_CERT_FILE",
}
#: Those that stand for all in `make test`: a database's own words, librdkafka's and OpenSSL's through Python.
QUICK = {("postgresql sink", "expired"), ("mysql source", "name"), ("kafka source", "authority")}
#: The words that say what is wrong, and those that say what to do.
WORDS = {
    "authority": ("is signed by 'CN=raycdc test authority', and by no authority in", "Name the file with"),
    "name": ("is for localhost, 127.0.0.1, and not for 0.0.0.0", "Write one of these names in"),
    "expired": ("has expired: it was valid until", "Renew it on the server"),
}


class Place(NamedTuple):
    host: str
    port: int
    ca: Path


def sections(client: str, place: Place) -> str:
    """The configuration of a client under the strictest checks that it has by default."""
    kind, _, role = client.partition(" ")
    host, port, ca = place
    account = f'user = "nobody"\npassword = "nothing"\ntls = {{ mode = "verify-identity", ca = "{ca}" }}\n'
    if kind == "mongodb":
        keys = f'type = "mongodb"\nuri = "mongodb://{host}:{port}/?tls=true&tlsCAFile={ca}"\n'
        keys += 'collections = ["shop.orders"]\n' if role == "source" else ""
    elif kind == "kafka":
        properties = f'{{ "security.protocol" = "ssl", "ssl.ca.location" = "{ca}" }}'
        keys = f'type = "kafka"\nbootstrap_servers = "{host}:{port}"\nproperties = {properties}\n'
        keys += 'format = { type = "maxwell-json" }\n' + ('topics = ["t"]\n' if role == "source" else "")
    elif kind == "iceberg":
        catalog = f'type = "rest", uri = "https://{host}:{port}", properties = {{ "ssl.cabundle" = "{ca}" }}'
        keys = f'type = "iceberg"\ncatalog = {{ {catalog} }}\n'
    elif kind == "delta":
        keys = f'type = "delta"\npath = "s3://lake/d"\n{STORE}endpoint = "https://{host}:{port}"\n'
    elif role == "source":
        keys = f'type = "mysql"\nhost = "{host}"\nport = {port}\ntables = ["shop.orders"]\n{account}'
    else:
        keys = f'type = "jdbc"\nurl = "{kind}://{host}:{port}/d"\n{account}'
    return f"[source]\n{keys}{FILES}" if role == "source" else f"{DATAGEN}[sink]\n{keys}"


@contextmanager
def showing(client: str, certificates: Path) -> Iterator[int]:
    """The port of a server that has these certificates, and nothing behind them. Nobody tells it anything."""
    if client.startswith("mysql"):
        with closing(Turncoat(0, honest=0, certificates=certificates)) as mysql:
            yield mysql.port
            assert mysql.betrayed
            assert not mysql.received
    elif client.startswith("postgresql"):
        with closing(BadCertificate(certificates)) as postgres:
            yield postgres.port
            assert not postgres.received
    else:
        with tls_in_front(certificates) as other:
            yield other.port
            assert not other.received


def said(folder: Path, ca: Path, text: str, *command: str) -> tuple[int, str]:
    """The exit code, and what a command prints in one line; `ca` is what clients of stores believe."""
    (folder / "c.toml").write_text('[pipeline]\nname = "believes"\n' + text)
    # These two would go before all that the HTTP library is told.
    others = {name: value for name, value in os.environ.items() if not name.endswith("_CA_BUNDLE")}
    one = completed([*command, "c.toml"], environment={**others, "SSL_CERT_FILE": str(ca)}, folder=folder)
    return one.returncode, re.sub(r"\s+", " ", one.stdout + one.stderr)


def cells() -> list[ParameterSet]:
    """All clients with all faults; most of them only in the suite ``certificates``."""
    every = [(client, fault) for client in CLIENTS for fault in WORDS]
    return [
        pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.long(suite="certificates")) for cell in every
    ]


@pytest.mark.parametrize(("client", "fault"), cells())
def test_a_certificate_that_is_not_believed_is_named_with_its_cure(client: str, fault: str, tmp_path: Path) -> None:
    shown, other = tmp_path / "shown", tmp_path / "other"
    write_certificates(shown, expired=fault == "expired")
    write_certificates(other)
    believed = other if fault == "authority" else shown
    wrong, cure = WORDS[fault]
    with showing(client, shown) as port:
        place = Place("0.0.0.0" if fault == "name" else "127.0.0.1", port, believed / "ca.pem")
        code, text = said(tmp_path, place.ca, sections(client, place), "check")
        assert code in (3, 5), text
        assert re.search("no TLS connection|cannot be reached", text, re.IGNORECASE), text
        assert wrong in text
        assert cure in text
        if fault == "authority" and (client, fault) not in QUICK:
            assert CLIENTS[client] in text
            code, text = said(tmp_path, place.ca, sections(client, place), "run", "--local", "--until", "caught-up")
            assert code in (3, 5), text
            assert wrong in text
            assert "Traceback" not in text


@pytest.mark.long(suite="certificates")
def test_a_store_and_its_catalog_behind_an_authority_of_ones_own(tmp_path: Path) -> None:
    """Delta, and Iceberg by a REST catalog, whose files pyiceberg and raycdc write."""
    shown = tmp_path / "shown"
    write_certificates(shown)
    with MotoServer() as moto, tls_in_front(shown, moto.port) as store:
        bucket = moto.create_bucket("lake")
        with IcebergRestServer(moto, f"s3://{bucket}/iceberg") as rest, tls_in_front(shown, rest.port) as catalog:
            ca = shown / "ca.pem"
            storage = f'{STORE}endpoint = "https://127.0.0.1:{store.port}"\n'
            there = sections("iceberg sink", Place("127.0.0.1", catalog.port, ca))
            files = {"delta": f'{DATAGEN}[sink]\ntype = "delta"\npath = "s3://{bucket}/d"\n', "iceberg": there}
            for name, text in files.items():
                (folder := tmp_path / name).mkdir()
                before = store.received, catalog.received
                for command in (["check"], ["run", "--local", "--until", "caught-up"]):
                    code, told = said(folder, ca, text + storage, *command)
                    assert code == 0, told
                assert store.received > before[0]
                assert (catalog.received > before[1]) is (name == "iceberg")


@pytest.mark.long(suite="certificates")
def test_documents_go_between_servers_whose_certificates_are_right(mongodb: MongoDb, tmp_path: Path) -> None:
    """Source and sink; the tests of the other clients have such a run of their own."""
    shown = tmp_path / "shown"
    write_certificates(shown)
    port = int(mongodb.uri.partition("?")[0].rstrip("/").rpartition(":")[2])
    with mongodb.fresh_database() as database, mongodb.fresh_database() as target, tls_in_front(shown, port) as front:
        with mongodb.client() as direct:
            direct[database]["orders"].insert_one({"_id": 1})
        uri = f"mongodb://127.0.0.1:{front.port}/?directConnection=true&tls=true&tlsCAFile={shown / 'ca.pem'}"
        text = f'[source]\ntype = "mongodb"\nuri = "{uri}"\ncollections = ["{database}.orders"]\n'
        text += f'[[route]]\ntable = "{database}.orders"\nto = "{target}.orders"\n'
        text += f'[sink]\ntype = "mongodb"\nuri = "{uri}"\nrecord = "{target}"\n'
        for command in (["check"], ["run", "--local", "--until", "caught-up"]):
            code, told = said(tmp_path, shown / "ca.pem", text, *command)
            assert code == 0, told
        assert [row["_id"] for row in mongodb.find(target, "orders")] == [1]
