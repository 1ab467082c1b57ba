"""`pipeline.state_key`: encrypts values of masked columns that the state must remember.

These are the bounds of chunks of a table that is cut by a masked column, and rows of prepared XA transactions of such a
table. Both are later compared with unmasked values, so they cannot be stored masked. The encryption is AES-SIV (RFC
5297) without a nonce. Equal values give equal texts; a text reveals nothing more about the value. A changed text is
refused. A text contains its version and the key's fingerprint, so that a wrong key is distinguished from damage.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache

from raycdc.errors import StateError

#: The minimum number of characters of a key, because keys are often chosen by people.
LENGTH_MIN = 16

_HEAD = "sealed:1:"
_SEALED = re.compile(f"{_HEAD}([0-9a-f]+):")
#: The cost parameters of scrypt (RFC 7914): 16 MiB and some 50 ms, once per process.
_COST = {"n": 1 << 14, "r": 8, "p": 1}
_KEY_BYTES = 64


class StateKey:
    """A key derived from the secret that the configuration names.

    Picklable; ``repr`` shows only the fingerprint.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return f"StateKey({self.fingerprint})"

    @property
    def fingerprint(self) -> str:
        """Return a text that identifies the key without revealing it."""
        return _derived(self._secret)[1]

    def seal(self, data: bytes) -> str:
        """Return `data` encrypted as a text, which only `open` of the same key can read."""
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        # The library does not encrypt an empty text.
        sealed = AESSIV(_derived(self._secret)[0]).encrypt(b"\0" + data, [_HEAD.encode()])
        return f"{_HEAD}{self.fingerprint}:{base64.b64encode(sealed).decode()}"

    def open(self, text: str) -> bytes:
        """Return the inverse of `seal`. Raises `StateError` for a text of another key, and for a damaged text."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        fingerprint, _, sealed = text.removeprefix(_HEAD).partition(":")
        if fingerprint != self.fingerprint:
            raise _another(fingerprint, self)
        try:
            return AESSIV(_derived(self._secret)[0]).decrypt(base64.b64decode(sealed), [_HEAD.encode()])[1:]
        except (InvalidTag, ValueError) as cause:
            raise StateError(
                "An encrypted value in the state is damaged. Restore the state folder from a copy, or start under "
                "another pipeline.state with a new snapshot."
            ) from cause


def require_state_key(key: StateKey | None, text: str) -> None:
    """Raise `StateError` if `text`, which comes from a state, contains a value that `key` cannot decrypt."""
    for fingerprint in sorted(set(_SEALED.findall(text))):
        if key is None:
            raise no_key()
        if fingerprint != key.fingerprint:
            raise _another(fingerprint, key)


def _another(fingerprint: str, key: StateKey) -> StateError:
    return StateError(
        f"The state was encrypted with another pipeline.state_key (its fingerprint is {fingerprint}, that of "
        f"the configured one {key.fingerprint}). Put the key back that this state was begun with."
    )


def no_key() -> StateError:
    """Return the error for a state that needs a key although none is configured."""
    return StateError(
        "The state has values that are encrypted, and pipeline.state_key is not set. Set it to the key that "
        "this state was begun with."
    )


def is_sealed(value: object) -> bool:
    """Return True if a value of the state was made by `StateKey.seal`."""
    return isinstance(value, str) and value.startswith(_HEAD)


@cache
def _derived(secret: str) -> tuple[bytes, str]:
    """Return the key and its fingerprint."""
    derived = hashlib.scrypt(secret.encode(), salt=b"raycdc state key", dklen=_KEY_BYTES + 4, **_COST)
    return derived[:_KEY_BYTES], derived[_KEY_BYTES:].hex()
