"""positive_data_acceptance and not_a_server_error, but for the rules in RULES: what the document cannot say is refused with the status, code and words
that are written there, and nothing else is. Which rule was met how often goes to RULES_MET."""

import atexit
import collections
import json
import os

import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import positive_data_acceptance

RULES = json.loads(os.environ["RULES"])
met = collections.Counter()


def rule_of(response, case):
    try:
        body = response.json()
    except Exception:
        return None
    if not isinstance(body, dict):
        return None
    for index, (operation, status, code, words, _) in enumerate(RULES):
        if (
            operation in ("*", case.operation.label)
            and status == response.status_code
            and code == body.get("code")
            and words in body.get("error", "")
        ):
            return index
    return None


def but_for_rules(check, ctx, response, case):
    try:
        return check(ctx, response, case)
    except AssertionError:
        index = rule_of(response, case)
        if index is None:
            raise
        met[index] += 1
        return None


@schemathesis.check
def valid_requests_are_taken(ctx, response, case):
    return but_for_rules(positive_data_acceptance, ctx, response, case)


@schemathesis.check
def no_server_errors(ctx, response, case):
    return but_for_rules(not_a_server_error, ctx, response, case)


@atexit.register
def tell():
    with open(os.environ["RULES_MET"], "w") as file:
        for index, (operation, status, code, words, why) in enumerate(RULES):
            file.write(f"{met[index]:>6}  {operation} {status} {code} {words!r}: {why}\n")
