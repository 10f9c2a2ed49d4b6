"""What Prometheus reads of a node with everything configured, by Prometheus' own parsers."""
from __future__ import annotations

import collections
import http.client
import os
import socket

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

import aquifer

DURABLE_TIERS = 5


class AdminConnection(http.client.HTTPConnection):
    """HTTP on the node's administrator's socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


@pytest.fixture(scope="module")
def scrape(tmp_path_factory):
    """Call it with an Accept header: the content type and the text of /metrics."""
    folder = tmp_path_factory.mktemp("whole-node")
    os.environ["STATE_DIRECTORY"] = str(folder / "state")
    (folder / "master").write_text("c" * 64 + "\n")
    (folder / "master").chmod(0o600)
    lines = [f'master_key_file = "{folder}/master"', f'record = "{folder}/trace.jsonl"']
    for number in range(DURABLE_TIERS):
        lines += ["[[tier]]", f'name = "store{number}"', 'kind = "posix"', 'size = "1GiB"',
                  f'directory = "{folder}/store{number}"']
    (folder / "aquifer.toml").write_text("\n".join(lines))
    with aquifer.Node(str(folder / "node.sock"), dram="128MiB", nvme=[f"{folder}/nvme:512MiB"],
                      config=str(folder / "aquifer.toml")) as node:
        node.connect().close()

        def ask(accept):
            connection = AdminConnection(str(folder / "node.admin.sock"))
            connection.request("GET", "/metrics", headers={"Accept": accept})
            answer = connection.getresponse()
            return answer.getheader("Content-Type"), answer.read().decode()
        yield ask
    del os.environ["STATE_DIRECTORY"]


def series_of(families):
    series = collections.Counter()
    for family in families:
        for sample in family.samples:
            series[sample.name, tuple(sorted(sample.labels.items()))] += 1
    return series


@pytest.mark.parametrize(("accept", "parse", "kind"), [
    ("text/plain", parse_text, "text/plain; version=0.0.4"),
    ("application/openmetrics-text; version=1.0.0", parse_openmetrics, "application/openmetrics-text"),
])
def test_prometheus_reads_every_series_once(scrape, accept, parse, kind):
    content_type, text = scrape(accept)
    assert content_type.startswith(kind)
    families = list(parse(text))
    names = collections.Counter(family.name for family in families)
    assert not [name for name, times in names.items() if times > 1]
    series = series_of(families)
    assert not [one for one, times in series.items() if times > 1]
    tiers = {dict(labels)["tier"] for name, labels in series if name == "aquifer_tier_in_service"}
    assert tiers == {"dram", "nvme"} | {f"store{number}" for number in range(DURABLE_TIERS)}
    assert len(families) > 100


def test_both_formats_have_the_same_series(scrape):
    plain = series_of(parse_text(scrape("text/plain")[1]))
    open_metrics = series_of(parse_openmetrics(scrape("application/openmetrics-text")[1]))
    assert set(plain) == set(open_metrics)
