from __future__ import annotations

import itertools

import pytest

from paceline.core.predict.admission import AdmissionRules, admit, check_exposure
from paceline.errors import RequestError, UsageError

TOKEN = "0123456789abcdef-token"
RULES = AdmissionRules(hosts=frozenset(("models.example",)), token=TOKEN, max_body_nbytes=100)
PATHS = (
    "/v2",
    "/v2/models",
    "/v2/models/m",
    "/v2/models/m/ready",
    "/v2/models/m/infer",
    "/metrics",
    "/page/m",
    "/nothing",
)
TOKENS = {
    None: 401,
    f"Bearer {TOKEN}": 0,
    f"Bearer {TOKEN[:-1]}": 401,
    f"Bearer {TOKEN}x": 401,
    "Bearer ": 401,
    TOKEN: 401,
}
HOSTS = {"localhost:8080": 0, "127.0.0.1": 0, "[::1]:8080": 0, "Models.Example": 0, "evil.example": 403, "": 403}
ORIGINS = {None: 0, "same": 0, "http://evil.example": 403, "null": 403}


def status(method: str, path: str, headers: dict[str, str], twice: frozenset[str] = frozenset()) -> int:
    try:
        admit(RULES, method, path, headers, twice)
    except RequestError as error:
        return error.status
    return 0


def test_the_matrix_of_who_is_let_in() -> None:
    every = itertools.product(("GET", "POST", "PUT", "DELETE"), PATHS, TOKENS, HOSTS, ORIGINS)
    for method, path, token, host, origin in every:
        headers = {"host": host}
        if token is not None:
            headers["authorization"] = token
        if origin is not None:
            headers["origin"] = f"http://{host}" if origin == "same" else origin
        wanted = HOSTS[host] or ORIGINS[origin] or TOKENS[token]
        assert status(method, path, headers) == wanted, (method, path, headers)


def test_probes_of_a_cluster_need_neither_name_nor_token() -> None:
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert status("GET", path, {"host": "10.1.2.3:8080"}) == 0
        assert status("POST", path, {"host": "10.1.2.3:8080"}) == 401


def test_a_body_is_refused_by_what_its_head_says() -> None:
    headers = {"host": "localhost", "authorization": f"Bearer {TOKEN}"}
    assert status("POST", "/v2/models/m/infer", {**headers, "content-length": "100"}) == 0
    assert status("POST", "/v2/models/m/infer", {**headers, "content-length": "10000000000"}) == 413
    assert status("POST", "/v2/models/m/infer", {**headers, "content-length": "-1"}) == 400
    assert status("POST", "/v2/models/m/infer", headers, frozenset(("host",))) == 400


def test_without_a_token_only_loopback_is_served() -> None:
    check_exposure("127.0.0.1", None)
    check_exposure("::1", None)
    check_exposure("localhost", None)
    check_exposure("0.0.0.0", TOKEN)
    for host in ("0.0.0.0", "10.0.0.1", "server.example"):
        with pytest.raises(UsageError, match="--token-file"):
            check_exposure(host, None)
    with pytest.raises(UsageError, match="at least 16"):
        check_exposure("127.0.0.1", "short")
