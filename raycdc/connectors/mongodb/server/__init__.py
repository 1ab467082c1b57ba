"""The replica set or sharded cluster: connections, collections and checks."""
