"""S3 against a real server of the protocol: a job on shards in a bucket, refused access, and no secret in any file."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit.real_runs import SCRIPTS, TIMEOUT_S, environment, live, run
from tests.kit.sample_files import write_parquet, write_tar

pytestmark = pytest.mark.real_run

SECRET = "verysecretkey0123456789"
SCRIPT = SCRIPTS / "data_formats.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of S3 on loopback."""
    log = tmp_path_factory.mktemp("moto") / "log"
    code = (
        "import sys\n"
        "from werkzeug.serving import make_server\n"
        "from moto.server import DomainDispatcherApplication, create_backend_app\n"
        "server = make_server('127.0.0.1', 0, DomainDispatcherApplication(create_backend_app), threaded=True)\n"
        "print(server.port, flush=True)\n"
        "server.serve_forever()\n"
    )
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=errors, env=environment()
        )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().decode().strip()
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(address, timeout=2).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        yield address
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


UPLOAD = (
    "import sys, fsspec\n"
    "fs = fsspec.filesystem('s3')\n"
    "fs.mkdir('bucket')\n"
    "fs.put(sys.argv[1] + '/', 'bucket/', recursive=True)\n"
)


def test_a_job_on_a_bucket_has_the_bits_of_the_files(server: str, tmp_path: Path) -> None:
    root = tmp_path / "files"
    for name, write in (("parquet", write_parquet), ("tar", write_tar)):
        (root / name).mkdir(parents=True)
        write(root / name)
    s3 = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    run([sys.executable, "-c", UPLOAD, str(root)], tmp_path, TIMEOUT_S, **s3).check()
    words = ["--formats", "parquet,tar"]
    local = run([sys.executable, str(SCRIPT), str(root), *words], tmp_path, PACELINE_CACHE=str(tmp_path / "a"))
    options = ["-w", "2", "-s", "1", "--seed", "7"]
    words += ["--folder-url", "s3://bucket", "--sleep", "0.05"]
    with live(tmp_path, options, SCRIPT, str(root), *words, PACELINE_CACHE=str(tmp_path / "b"), **s3) as running:
        running.until_version(3)
        running.strike("worker-1")
        running.hurry()
        ended = running.wait()
    ended.check()
    (digest,) = set(re.findall(r"DIGEST (\w+)", ended.out))
    assert f"DIGEST {digest}" in local.check().out
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
