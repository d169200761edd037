"""How schemas are written down here, by hand and from the request models.

Knows: the part of JSON Schema that both documents may use, which is what draft 7 and 2020-12 share. Does not
know: any endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from app.protocol.payload import Unsupported

Schema = dict[str, Any]

REF = "#/components/schemas/"
"""Both OpenAPI and AsyncAPI keep schemas there."""

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
SWITCH: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}


def ref(name: str) -> Schema:
    return {"$ref": REF + name}


def one_of(*values: object) -> Schema:
    return {"const": values[0]} if len(values) == 1 else {"enum": list(values)}


def any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def maybe(schema: Schema) -> Schema:
    """Or null."""
    return any_of(schema, NULL)


def items(schema: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": schema} | bounds


def record(properties: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with all of `properties`, perhaps some of `optional`, and nothing else."""
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": list(properties),
        "additionalProperties": False,
    }


def request_schemas(models: Iterable[tuple[type[BaseModel], Unsupported]]) -> dict[str, Schema]:
    """The schemas of request models and of what they are made of, by name. Parameters that are known and not
    supported are in them, with the values that change nothing."""
    pairs = list(models)
    _, definitions = models_json_schema(
        [(model, "validation") for model, _ in pairs],
        ref_template=REF + "{model}",
        schema_generator=_Generator,
    )
    schemas: dict[str, Schema] = definitions["$defs"]
    for model, unsupported in pairs:
        admit(schemas[model.__name__], unsupported)
    return schemas


def query_parameters(model: type[BaseModel], unsupported: Unsupported) -> list[dict[str, Any]]:
    """The fields of a query. Of what is not supported, the values that change nothing and that a query can
    hold. What may be null may be left out."""
    schema = model.model_json_schema(schema_generator=_Generator)
    fields = schema["properties"] | {
        name: {"enum": [each for each in neutral if isinstance(each, str)], "description": "not supported"}
        for name, neutral in unsupported.items()
    }
    return [
        {"name": name, "in": "query", "description": description, "schema": _without_null(field)}
        for name, field in fields.items()
        if (description := field.pop("description")) and field.get("enum", True)
    ]


def _without_null(schema: Schema) -> Schema:
    kinds = [each for each in schema.get("anyOf", ()) if each != NULL]
    return kinds[0] if len(kinds) == 1 else schema


def admit(schema: Schema, unsupported: Mapping[str, Sequence[object]]) -> None:
    schema["properties"] |= {
        name: {"enum": [*neutral, None], "description": "not supported; these values change nothing"}
        for name, neutral in sorted(unsupported.items())
    }


def without_unused(document: dict[str, Any]) -> dict[str, Any]:
    """The document with those schemas alone that something in it refers to."""
    schemas: dict[str, Schema] = document["components"]["schemas"]
    needed: set[str] = set()
    found = _names({**document, "components": {**document["components"], "schemas": {}}})
    while found:
        needed |= found
        found = _names([schemas[name] for name in found]) - needed
    kept = {name: schema for name, schema in schemas.items() if name in needed}
    return {**document, "components": {**document["components"], "schemas": kept}}


def _names(value: object) -> set[str]:
    """Of the schemas that are referred to."""
    if isinstance(value, dict):
        target = value.get("$ref")
        here = {target.removeprefix(REF)} if isinstance(target, str) and target.startswith(REF) else set()
        return here.union(*map(_names, value.values()))
    return set().union(*map(_names, value)) if isinstance(value, list) else set()


class _Generator(GenerateJsonSchema):
    """No titles, no null as a default, which would only repeat names and "optional", and nothing that the two
    documents would read in different ways."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        json_schema = super().model_schema(schema)
        json_schema.pop("title", None)
        return json_schema

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        json_schema = super().default_schema(schema)
        if json_schema.get("default", ...) is None:
            del json_schema["default"]
        return json_schema

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        json_schema = super().tagged_union_schema(schema)
        json_schema.pop("discriminator", None)
        return json_schema

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        json_schema = super().dict_schema(schema)
        if "patternProperties" in json_schema:
            json_schema["additionalProperties"] = False
        return json_schema
