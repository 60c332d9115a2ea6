"""What is known about a type, and how its values are carried."""

from enum import StrEnum
from typing import NamedTuple

from psycopg import sql

from vitrine.postgres import raw

UNSET = -1
"""The modifier of a type without length, scale or precision."""


class Form(StrEnum):
    """How a value becomes the type that carries it, in the session of its own database."""

    SAME = "same"
    CAST = "cast"
    TEXT = "text"
    JSON = "json"


class Operator(NamedTuple):
    """An operator by its full name: a bare one would resolve to that of another type under our search_path."""

    schema: str
    name: str

    def between(self, left: sql.Composable, right: sql.Composable) -> sql.Composed:
        return sql.SQL("{} OPERATOR({}.{}) {}").format(left, sql.Identifier(self.schema), raw(self.name), right)


class TypeFacts(NamedTuple):
    """A type as its database describes it, and the type that carries its values."""

    declared: str  # in its own database, with length or scale; qualified unless it belongs to pg_catalog
    bare: str  # the same without length or scale: a cast to it changes no value
    carrier: str  # the type in a batch and in a created mart
    carrier_oid: int  # how COPY BINARY encodes it
    form: Form
    extension: str | None  # the carrier belongs to this extension; None: to pg_catalog
    # operators of the default btree operator class; None: values of the type have no order
    equal: Operator | None
    greater: Operator | None
    at_least: Operator | None
    send: sql.Identifier | None  # the function that returns the image of a value; None: there is none
    polymorphic: bool  # the operators take any enum, array or range: a domain over one must be cast to it first
    identical: bool  # equal values have equal images, provided that their collation is deterministic
    collatable: bool
    foreign_code: bool  # its owner, who is not a superuser, may have attached functions that a write would execute

    @property
    def is_flattened(self) -> bool:
        return self.form is not Form.SAME

    def carried(self, value: sql.Composable) -> sql.Composable:
        """The value as its carrier, to be evaluated by the reader of its own database."""
        match self.form:
            case Form.SAME:
                return value
            case Form.CAST:
                return sql.SQL("CAST({} AS {})").format(value, raw(self.carrier))
            case Form.TEXT:
                return output_text(value)
            case Form.JSON:
                return sql.SQL("to_jsonb({})").format(value)


def output_text(value: sql.Composable) -> sql.Composed:
    """The text that the type's output function returns: a cast to text may be defined to return another one."""
    return sql.SQL("CASE WHEN {0} IS NOT DISTINCT FROM NULL THEN NULL ELSE concat({0}) END").format(value)
