"""Elasticsearch as a sink of search indexes."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    Field,
    SecretStr,
    StrictBool,
    StrictInt,
    model_validator,
)

from vitrine import urls
from vitrine.definition.connectors import Connector, SinkSpec
from vitrine.definition.model import Duration
from vitrine.settings import ConnectorSettings, HeaderSecret

INDEX_NAME = r"[a-z0-9][a-z0-9_-]{0,99}"
OWN_NAMES = r".*__g[0-9]+(__[a-z]+)?$"
"""Names of the indexes and aliases behind a target: `<index>__g<n>`."""


def _checked(url: SecretStr) -> SecretStr:
    urls.parse_http(url.get_secret_value())
    return url


class ElasticsearchSettings(ConnectorSettings):
    """Settings of the connector."""

    needs: ClassVar[str] = "set VITRINE_ELASTICSEARCH_URL, such as https://search.example.com:9200"

    url: Annotated[SecretStr, AfterValidator(_checked)] | None = Field(
        default=None,
        validation_alias=AliasChoices("VITRINE_ELASTICSEARCH_URL", "ELASTICSEARCH_URL", "url"),
        description="Address of the cluster, such as https://search.example.com:9200; several are separated by commas.",
    )
    user: str | None = Field(default=None, description="User for basic authentication.")
    password: SecretStr | None = Field(default=None, description="Password of the user.")
    api_key: HeaderSecret | None = Field(default=None, description="API key, instead of user and password.")
    ca_file: Path | None = Field(
        default=None, description="File with the certificate authority that signed the certificate of the cluster."
    )
    verify_certificates: bool = Field(
        default=True, description="Set it to false only for tests: certificates of the cluster are then not checked."
    )
    request_timeout: Duration = Field(
        default=timedelta(seconds=60),
        ge=timedelta(milliseconds=100),
        description="How long one request may take; a request never outlasts the lease of its run.",
    )
    takeover_grace: Duration = Field(
        default=timedelta(seconds=10),
        description="How long a run waits before its first write if the run before it died: a request of that one may"
        " still be in progress.",
    )
    compress: bool | None = Field(
        default=None, description="Send compressed requests; by default only to a cluster on another machine."
    )

    @property
    def is_configured(self) -> bool:
        return self.url is not None

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> "ElasticsearchSettings":
        if self.api_key is not None and self.user is not None:
            raise ValueError("give an api_key or a user, not both")
        if (self.user is None) != (self.password is None):
            raise ValueError("give user and password together")
        return self


class ElasticsearchOptions(BaseModel):
    """Options of a pipeline that writes to Elasticsearch."""

    index: dict[str, Any] | None = Field(
        default=None,
        description="Definition of the index: `settings` (analysis included) and `mappings`, as Elasticsearch takes"
        " them; in a YAML file of a pipeline also the name of a YAML or JSON file beside it. Columns without a mapping"
        " get one from their type.",
        json_schema_extra={"file": True},
    )
    write: Literal["index", "upsert"] = Field(
        default="index",
        description="`index` replaces the whole document, and an older run cannot overwrite a newer one. `upsert`"
        " changes only the fields of this pipeline, for documents that other programs extend.",
    )
    nulls: Literal["omit", "write"] = Field(
        default="omit",
        description="NULL: `omit` the field, or `write` null. With `write: upsert` it is always written.",
    )
    keep_generations: StrictInt = Field(
        default=1, ge=0, le=100, description="How many replaced generations of the index are kept for `rollback`."
    )
    strict_shrink: StrictBool = Field(
        default=False,
        description="max_delete_ratio compares the ids of both generations instead of their counts; exact, and slower.",
    )
    bulk_documents: StrictInt = Field(default=2_000, ge=1, le=50_000, description="Documents in one request, at most.")
    bulk_bytes: StrictInt = Field(
        default=5 * 1024 * 1024,
        ge=1024,
        le=90 * 1024 * 1024,
        description="Bytes in one request before compression, at most; one larger document is sent alone.",
    )
    bulk_in_flight: StrictInt = Field(default=2, ge=1, le=16, description="Requests sent at the same time, at most.")


connector = Connector(
    "elasticsearch",
    settings=ElasticsearchSettings,
    extra="elasticsearch",
    sink=SinkSpec(
        "vitrine.connectors.elasticsearch.sink:ElasticsearchSink",
        scheme="es",
        pattern=INDEX_NAME,
        grammar="es:index in lower-case letters, digits, hyphens and underscores, beginning with a letter or digit",
        options=ElasticsearchOptions,
        # guarantee: F15
        reserved=OWN_NAMES,
    ),
    devserver="vitrine_devserver:DevServer",
    diagnose="vitrine.connectors.elasticsearch.checks:diagnose",
)
