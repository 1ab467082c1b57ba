"""The replica set or sharded cluster itself: connections, collections, checks, log retention."""
