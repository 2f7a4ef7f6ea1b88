"""Signatures of Standard Webhooks."""

from __future__ import annotations

import pytest

from whystall.agent_server.outbound.standard_webhooks import matches, signature
from whystall.tools.contract.errors import ErrorCode, ToolError


@pytest.mark.parametrize("secret", ["whsec_", "whsec_not base64", "whsec_abc", "whsec_MfKQ9r8GKYqrTwjU!"])
def test_a_secret_that_cannot_be_decoded_is_refused(secret: str) -> None:
    with pytest.raises(ToolError, match="not base64") as refused:
        signature(secret, "id", "1614265330", b"{}")
    assert refused.value.code is ErrorCode.BAD_ARGUMENT
    assert secret not in str(refused.value) or secret == "whsec_"
    with pytest.raises(ToolError):
        matches("v1,x", secret, "id", "1614265330", b"{}")


def test_any_other_text_is_a_secret_as_it_stands() -> None:
    assert matches(signature("plain text", "id", "1", b"{}"), "plain text", "id", "1", b"{}")
