"""Exits with 0 if the run in this container answers GET /healthz with 200; for Docker's HEALTHCHECK."""

import http.client
import os
import sys

ADDRESS = os.environ.get("RAYCDC_HEALTH", "127.0.0.1:9464")

try:
    connection = http.client.HTTPConnection(ADDRESS, timeout=4)
    connection.request("GET", "/healthz")
    sys.exit(0 if connection.getresponse().status == 200 else 1)
except OSError as error:
    sys.exit(f"{ADDRESS} does not answer: {error}. Set [metrics] address in the configuration, or RAYCDC_HEALTH here.")
