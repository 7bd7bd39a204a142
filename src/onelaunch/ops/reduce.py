"""Reductions and prefix scans."""

from __future__ import annotations

import numpy as np

from onelaunch.ir.builder import Builder
from onelaunch.ir.nodes import Value
from onelaunch.ops.table import Params, Rule, rule

REDUCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor"}
PREFIXES = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min", "cumlogsumexp": "logaddexp"}


def reduction(monoid: str) -> Rule:
    def reduce_named(b: Builder, params: Params, x: Value) -> Value:
        return b.reduce(monoid, x, params["axes"]) if params["axes"] else x

    return reduce_named


def prefix(monoid: str) -> Rule:
    def scan_named(b: Builder, params: Params, x: Value) -> Value:
        return b.scan(monoid, x, params["axis"], params["reverse"])

    return scan_named


for _name, _monoid in REDUCTIONS.items():
    rule("reduce_" + _name)(reduction(_monoid))
for _name, _monoid in PREFIXES.items():
    rule(_name)(prefix(_monoid))


@rule("argmax")
def argmax(b: Builder, params: Params, x: Value) -> Value:
    return b.reduce("argmax", x, params["axes"], np.dtype(params["index_dtype"]))


@rule("argmin")
def argmin(b: Builder, params: Params, x: Value) -> Value:
    return b.reduce("argmin", x, params["axes"], np.dtype(params["index_dtype"]))
