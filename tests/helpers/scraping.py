"""What a process tells Prometheus, as Prometheus would read it."""

from dataclasses import dataclass, field
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families


@dataclass
class Scraped:
    """Every sample by its name, and the labels it bears."""

    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = field(
        default_factory=dict[str, dict[tuple[tuple[str, str], ...], float]]
    )

    def value(self, name: str, **labels: str) -> float | None:
        """None: there is no such sample."""
        return self.samples.get(name, {}).get(tuple(sorted(labels.items())))

    def labels(self, name: str) -> set[str]:
        """Names of the labels that a metric bears."""
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
    """Status and text of an answer; (0, "") while nobody listens."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    except OSError:
        return 0, ""
