"""Reads the metrics of a process as Prometheus does."""

from dataclasses import dataclass, field
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


@dataclass
class Scraped:
    """All samples by name and labels."""

    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = field(
        default_factory=dict[str, dict[tuple[tuple[str, str], ...], float]]
    )

    def value(self, name: str, **labels: str) -> float | None:
        """The value of a sample; None if there is none."""
        return self.samples.get(name, {}).get(tuple(sorted(labels.items())))

    def labels(self, name: str) -> set[str]:
        """Names of the labels of a metric."""
        return {label for labels in self.samples.get(name, {}) for label, _ in labels}

    @property
    def names(self) -> set[str]:
        return set(self.samples)


def parse(*texts: str) -> Scraped:
    scraped = Scraped()
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found = scraped.samples.setdefault(sample.name, {})
                found[tuple(sorted(sample.labels.items()))] = sample.value
    return scraped


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body of a response; (0, "") while no process listens."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def answers(url: str) -> bool:
    """Whether a server responds with 200."""
    try:
        with urlopen(url, timeout=5) as response:
            return response.status == 200
    except (URLError, OSError):
        return False
