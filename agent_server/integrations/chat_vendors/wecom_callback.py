"""Verify, decrypt and read WeCom's callbacks (https://developer.work.weixin.qq.com/document/path/90930, .../90968).

The parameter ``msg_signature`` is the hexadecimal SHA-1 of token, ``timestamp``, ``nonce`` and ciphertext, sorted and
joined. The ciphertext is base64 of AES-256-CBC, padded to 32 bytes (PKCS#7), whose IV is the first half of the key. The
plaintext is 16 random bytes, the length of the message (4 bytes, big-endian), the message, and the id of the receiver:
the CorpID for an app of one's own. Body and message are XML, or both JSON (Tencent's sample ``callback_json``)::

    <xml><ToUserName>CORP</ToUserName><Encrypt>base64</Encrypt><AgentID>1000002</AgentID></xml>
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from xml.parsers import expat

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from whystall.agent_server.integrations.chat_vendors import callback_checks as checks
from whystall.agent_server.integrations.messages import Refused

_BLOCK = 32
_HEAD = 20  # bytes before the message
_DEPTH = 16
_FIELDS = 200


def signature(token: str, timestamp: str, nonce: str, encrypted: str) -> str:
    """Return the signature of a callback."""
    text = "".join(sorted((token, timestamp, nonce, encrypted)))
    return hashlib.sha1(text.encode("utf-8", "replace")).hexdigest()  # noqa: S324 - WeCom's


def encrypted_part(body: bytes) -> str:
    """Return the ciphertext in the `body` of a callback. Raises `Refused`."""
    found = fields(body)
    encrypted = found.get("Encrypt") or found.get("encrypt")
    if not encrypted:
        raise Refused(401, "signature", "it is not encrypted")
    return encrypted


def decrypt(encrypted: str, key: bytes, receiver: str) -> bytes:
    """Return the message in a ciphertext for `receiver`; `key`: 32 bytes.

    All failures raise the same `Refused`, so as to give no padding oracle; only its detail, which is logged, tells
    another receiver.
    """
    try:
        raw = base64.b64decode(encrypted, validate=True)
    except (binascii.Error, ValueError):
        raise unreadable() from None
    if len(raw) < _BLOCK or len(raw) % 16:
        raise unreadable()
    opened = Cipher(algorithms.AES(key), modes.CBC(key[:16])).decryptor()
    text = opened.update(raw) + opened.finalize()
    pad = text[-1]
    if not 1 <= pad <= _BLOCK or text[-pad:] != bytes([pad]) * pad:
        raise unreadable()
    text = text[:-pad]
    end = _HEAD + int.from_bytes(text[16:_HEAD], "big")
    if not _HEAD <= end <= len(text):
        raise unreadable()
    if not hmac.compare_digest(text[end:], receiver.encode()):
        raise Refused(401, "signature", "it is for another receiver than corp_id")
    return text[_HEAD:end]


def message_fields(message: bytes) -> dict[str, str]:
    """Return the `fields` of a decrypted message, refusing others with the same error as a wrong padding."""
    try:
        return fields(message)
    except Refused:
        raise unreadable() from None


def unreadable() -> Refused:
    return Refused(401, "signature", "it cannot be decrypted with encoding_aes_key")


def fields(text: bytes) -> dict[str, str]:
    """Return the texts of a flat JSON object, or of the children of an XML element, by name; integers as text, nested
    values not at all. Raises `Refused` (malformed).
    """
    if text.lstrip()[:1] != b"{":
        return _xml_fields(text)
    found: Mapping[str, object] = checks.json_object(text)
    return {name: str(value) for name, value in found.items() if isinstance(value, str) or type(value) is int}


class _Reader:
    """Collects the texts of the root's children; entities cannot be declared, since a DTD is refused."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._path: list[str] = []
        self._text: list[str] = []

    def start(self, name: str, _: object) -> None:
        self._path.append(name)
        if len(self._path) > _DEPTH or len(self.found) > _FIELDS:
            raise Refused(400, "malformed", "too much XML")
        if len(self._path) == 2:
            self._text.clear()

    def data(self, text: str) -> None:
        if len(self._path) == 2:
            self._text.append(text)

    def end(self, name: str) -> None:
        if len(self._path) == 2:
            if name in self.found:
                raise Refused(400, "malformed", "an XML element occurs twice")
            self.found[name] = "".join(self._text)
        self._path.pop()

    def doctype(self, *_: object) -> None:
        raise Refused(400, "malformed", "XML with a DTD")


def _xml_fields(text: bytes) -> dict[str, str]:
    reader = _Reader()
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.data
    parser.StartDoctypeDeclHandler = reader.doctype
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, ValueError):
        raise Refused(400, "malformed", "neither JSON nor XML") from None
    return reader.found
