"""Page views joined with users: ``python examples/pageviews.py [--local]`` in a new folder.

Starts a private MariaDB with shop.pageviews and an emulated MongoDB with crm.users, follows the views into
./pageviews-lake by pageviews_users.toml and copies the users by users_copy.toml, changes both sides, and does so again.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

CREATE = """CREATE TABLE pageviews (id BIGINT PRIMARY KEY AUTO_INCREMENT, user_id INT, page VARCHAR(100) NOT NULL,
viewed_at DATETIME(3) NOT NULL)"""
INSERT = "INSERT INTO pageviews (user_id, page, viewed_at) VALUES (%s, %s, '2024-02-29 12:00:00')"

VIEWS = [(n % 7 if n % 11 else None, f"/page/{n % 5}") for n in range(1000)]
LATER = [(6, "/last"), (8, "/first")]

Users = list[dict[str, Any]]


def users() -> Users:
    """Return five of the seven users who view pages."""
    return [
        {
            "_id": n,
            "name": f"User {n}",
            "region": "EU" if n % 2 else "US",
            "address": {"city": "Ghent", "zip": [9000, n]},
        }
        for n in range(5)
    ]


def begin(shop: Any, crm: Any) -> None:
    """Fill shop.pageviews by `shop`, a cursor, and crm.users, a collection."""
    shop.execute(CREATE)
    shop.executemany(INSERT, VIEWS)
    crm.insert_many(users())


def go_on(shop: Any, crm: Any) -> None:
    """Move a user, delete one and insert one; add views, and change and delete old ones."""
    crm.update_one({"_id": 1}, {"$set": {"region": "APAC"}})
    crm.delete_one({"_id": 2})
    crm.insert_one({"_id": 8, "name": "User 8", "region": "EU", "since": 2024})
    shop.executemany(INSERT, LATER)
    shop.execute("UPDATE pageviews SET page = '/changed' WHERE id IN (2, 3)")
    shop.execute("DELETE FROM pageviews WHERE id = 4")


def follow(*, local: bool) -> None:
    """Run both pipelines until they have everything that exists now."""
    here = Path(__file__).parent
    for name in ("pageviews_users.toml", "users_copy.toml"):
        command = [sys.executable, "-m", "raycdc.cli", "run", str(here / name), "--until", "caught-up"]
        subprocess.run([*command, *(["--local"] if local else [])], check=True)


def show(crm: Any) -> int:
    """Print the views of each region, and if both collections of users are equal; return 0 if they are."""
    rows = DeltaTable("pageviews-lake/shop/pageviews").to_pyarrow_table(columns=["user_region"])
    for each in sorted(rows.group_by("user_region").aggregate([([], "count_all")]).to_pylist(), key=str):
        sys.stdout.write(f"{each['user_region'] or 'unknown':8} {each['count_all']:5} views\n")
    equal = list(crm.find().sort("_id")) == list(crm.database.users_copy.find().sort("_id"))
    sys.stdout.write(f"crm.users and crm.users_copy {'are equal' if equal else 'differ'}.\n")
    return 0 if equal else 1


def main() -> int:
    """Run the whole example; the exit code says if the copy is equal."""
    from raycdc.sandbox.servers import MariaDbServer, MongoDbServer

    local = "--local" in sys.argv[1:]
    with MariaDbServer() as mariadb, MongoDbServer() as mongodb, mongodb.client() as client:
        os.environ |= {"MYSQL_HOST": mariadb.host, "MYSQL_PORT": str(mariadb.port), "MONGODB_URI": mongodb.uri}
        os.environ["MYSQL_PASSWORD"] = mariadb.cdc_password
        mariadb.execute("CREATE DATABASE shop")
        with mariadb.connect(database="shop", autocommit=True) as connection, connection.cursor() as shop:
            begin(shop, client.crm.users)
            follow(local=local)
            go_on(shop, client.crm.users)
            follow(local=local)
            return show(client.crm.users)


if __name__ == "__main__":
    sys.exit(main())
