"""Access of this process to the server that imitates the hub."""

import pytest


@pytest.fixture
def use_hub(tmp_path, monkeypatch):
    """Return a function that makes a `Hub` the hub of this process, with a token or without."""
    constants = pytest.importorskip("huggingface_hub.constants")

    def use(hub, token=""):
        address = f"http://127.0.0.1:{hub.server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
        monkeypatch.setenv("HF_TOKEN", token)
        monkeypatch.setenv("no_proxy", "127.0.0.1")

    return use
