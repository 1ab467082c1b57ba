"""What the private servers of the S3 API have in common: where clients find them, and their buckets."""

from __future__ import annotations

import http.client
from contextlib import closing

from raycdc.stores.settings import StorageSettings
from raycdc.testing.servers.process import ServerError

_TIMEOUT_S = 20.0
#: Any key will do, because none of the servers looks at it.
ACCESS_KEY, SECRET_KEY, REGION = "test", "test", "us-east-1"


class S3Server:
    """A server of the S3 API at `host` and `port`, without TLS, that believes every key."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        """The address for clients."""
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which AWS's clients, obstore and delta-rs find this server."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    @property
    def settings(self) -> StorageSettings:
        """``[storage]`` for this server."""
        return StorageSettings(
            endpoint=self.endpoint,
            region=REGION,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            allow_http=True,
        )

    @property
    def section(self) -> str:
        """The same as TOML."""
        return f"""
[storage]
endpoint = "{self.endpoint}"
region = "{REGION}"
access_key_id = "{ACCESS_KEY}"
secret_access_key = "{SECRET_KEY}"
allow_http = true
"""

    def create_bucket(self, name: str) -> str:
        """Make an empty bucket; returns its name."""
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)) as connection:
            connection.request("PUT", f"/{name}")
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != 200:
            raise ServerError(f"{self!r} made no bucket {name!r}: {answer.status} {text.decode(errors='replace')}")
        return name
