"""Private keys that all connections share."""

from __future__ import annotations

from pathlib import Path

import paramiko
import pytest

from dslaunch.transport.ssh.shared_keys import SharedKeys


class KeyFile:
    """A file with an ECDSA key, which counts how often it is parsed."""

    def __init__(self, path: Path) -> None:
        self.path, self.parsed = str(path), 0
        paramiko.ECDSAKey.generate().write_private_key_file(self.path)

    def of(self, keys: SharedKeys, kind: type[paramiko.PKey]) -> paramiko.PKey:
        """The key of a kind in the file."""

        def parse() -> paramiko.PKey:
            self.parsed += 1
            return kind.from_private_key_file(self.path)

        return keys.get(self.path, kind, parse)


def test_a_key_is_parsed_once(tmp_path: Path) -> None:
    keys, file = SharedKeys(), KeyFile(tmp_path / "key")
    assert file.of(keys, paramiko.ECDSAKey) is file.of(keys, paramiko.ECDSAKey)
    assert file.parsed == 1


def test_a_file_with_another_kind_of_key_is_refused_each_time_and_parsed_once(
    tmp_path: Path,
) -> None:
    keys, file = SharedKeys(), KeyFile(tmp_path / "key")
    with pytest.raises(paramiko.SSHException) as first:
        file.of(keys, paramiko.RSAKey)
    with pytest.raises(paramiko.SSHException) as second:
        file.of(keys, paramiko.RSAKey)
    assert first.value is not second.value
    assert file.parsed == 1
