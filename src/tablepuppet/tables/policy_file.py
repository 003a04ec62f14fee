"""policy.toml → Policy: an owner's file, without which, or with a mistake in which, nothing is answered."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from tablepuppet.errors import PolicyError
from tablepuppet.privacy.policy import Policy


def read_policy(path: str | Path) -> Policy:
    """The policy in a TOML file; a rule that is not known is an error, for it would protect nothing."""
    try:
        content = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise PolicyError(f"the policy file {path} cannot be read; without it, nothing is answered") from None
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"the policy file {path} is not valid TOML: {error}") from None
    try:
        return msgspec.convert(content, Policy, strict=True)
    except msgspec.ValidationError as error:
        raise PolicyError(f"the policy file {path} cannot be used: {error}") from None
