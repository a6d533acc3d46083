//! The table of operations that `/openapi.json` is made from. Over 400 lines because it is one table.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use schemas::api::{
    AuditPage, ChangesRequest, Difference, EffectiveView, FleetView, HeadView, Health,
    HistoryEntry, HistoryPage, Line, ParameterRequest, ParametersView, PatchAnswer, PatchRequest,
    PolicyList, PolicyPatchRequest, PolicyView, RevertRequest, RouterList, TailsView,
    ThresholdAnswer, ThresholdList, ThresholdRequest, ValidateAnswer, WriteAnswer,
};
use schemas::status::AgentStatus;
use serde_json::Value;

/// What a route takes or answers.
pub type Shape = fn(&mut SchemaGenerator) -> Schema;

/// One operation.
pub struct Operation {
    /// `get`, `post`, …
    pub method: &'static str,
    /// The path, with `{…}`.
    pub path: &'static str,
    /// In a few words.
    pub summary: &'static str,
    /// Query keys with what they mean; a `*` after a name: required.
    pub query: &'static [(&'static str, &'static str)],
    /// Its body.
    pub request: Option<Shape>,
    /// Its success.
    pub answer: Answer,
    /// Statuses of errors.
    pub errors: &'static [u16],
    /// True for routes that `facade_disabled` turns off.
    pub facade: bool,
}

/// A success.
pub enum Answer {
    /// 200 with JSON.
    Json(Shape),
    /// JSON, or these media types when asked for.
    Either(Shape, &'static [&'static str]),
    /// These media types alone.
    Only(&'static [&'static str]),
    /// 204.
    Nothing,
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const WAIT: &[(&str, &str)] = &[
    (
        "wait",
        "`converged`: answer when the fleet has it (the answer says who applied, who refused, who is missing); `committed` (default): when the log has it",
    ),
    (
        "timeout_ms",
        "longest wait for convergence: 0 to 60000, default 10000",
    ),
];
const SCOPE: &[(&str, &str)] = &[
    ("kind", "worker_selection or busy_threshold"),
    ("model", "exact model of the scope"),
    ("worker_type", "aggregated, prefill, decode or encode"),
    ("endpoint", "namespace/component/endpoint"),
    ("group", "label of frontends"),
    MIN_POSITION,
];
/// Of reads that must hold what was seen elsewhere.
const MIN_POSITION: (&str, &str) = (
    "min_position",
    "answer with at least everything up to this position, the one in the answer to a write for example",
);
const PAGE: &[(&str, &str)] = &[
    ("order", "newest (default) or oldest first"),
    ("limit", "1 to 1000, default 100"),
    ("cursor", "next_cursor of the page before"),
];
const AUDIT: &[(&str, &str)] = &[
    ("policy", "id of a policy"),
    ("kind", "worker_selection or busy_threshold"),
    ("model", "exact model of the scope"),
    ("worker_type", "aggregated, prefill, decode or encode"),
    ("endpoint", "namespace/component/endpoint"),
    ("group", "label of frontends"),
    ("actor", "name of who asked"),
    ("action", "patched, reset, reverted or registered"),
    ("command_id", "id of the command"),
    ("verdict", "accepted, void or unreadable"),
    ("since", "RFC 3339: not before, as recorded"),
    ("until", "RFC 3339: not after, as recorded"),
    ("after", "positions beyond this"),
    ("before", "positions before this"),
    ("order", "newest (default) or oldest first"),
    (
        "limit",
        "1 to 1000, default 100; for exports any number, default all",
    ),
    (
        "cursor",
        "next_cursor of the page before, with the same filters",
    ),
    ("format", "json (default), ndjson or csv; also by Accept"),
];
// 503 also for an answer too large to be given just now.
const READS: &[u16] = &[400, 503];
const READS_ONE: &[u16] = &[400, 404, 503];
const READS_AT_LEAST: &[u16] = &[400, 409, 503];
const READS_ONE_AT_LEAST: &[u16] = &[400, 404, 409, 503];
const WRITES: &[u16] = &[400, 408, 409, 413, 415, 422, 503];
const WRITES_ONE: &[u16] = &[400, 404, 408, 409, 412, 413, 415, 422, 503];
const THRESHOLDS: &[u16] = &[400, 404, 408, 409, 412, 413, 415, 422, 503];

/// A `GET` that answers JSON.
const fn read(
    path: &'static str,
    summary: &'static str,
    query: &'static [(&'static str, &'static str)],
    answer: Shape,
    errors: &'static [u16],
) -> Operation {
    Operation {
        method: "get",
        path,
        summary,
        query,
        request: None,
        answer: Answer::Json(answer),
        errors,
        facade: false,
    }
}

/// A write that answers JSON.
const fn write(
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    request: Shape,
    answer: Shape,
    errors: &'static [u16],
) -> Operation {
    Operation {
        method,
        path,
        summary,
        query: WAIT,
        request: Some(request),
        answer: Answer::Json(answer),
        errors,
        facade: false,
    }
}

const fn facade(operation: Operation) -> Operation {
    Operation {
        facade: true,
        ..operation
    }
}

/// Every operation.
pub const OPERATIONS: &[Operation] = &[
    facade(read(
        "/router_policy",
        "Routers of the fleet, as one Dynamo frontend lists its own",
        &[("model", "exact model")],
        of::<RouterList>,
        READS,
    )),
    facade(write(
        "patch",
        "/router_policy",
        "Change a router's policy on the whole fleet, as on one Dynamo frontend",
        of::<PatchRequest>,
        of::<PatchAnswer>,
        WRITES_ONE,
    )),
    facade(read(
        "/router_policy/busy_threshold",
        "Busy thresholds per model",
        &[],
        of::<ThresholdList>,
        &[],
    )),
    facade(write(
        "post",
        "/router_policy/busy_threshold",
        "Read (model alone) or set a model's busy thresholds",
        of::<ThresholdRequest>,
        of::<ThresholdAnswer>,
        THRESHOLDS,
    )),
    facade(read(
        "/busy_threshold",
        "Busy thresholds per model",
        &[],
        of::<ThresholdList>,
        &[],
    )),
    facade(write(
        "post",
        "/busy_threshold",
        "Read (model alone) or set a model's busy thresholds",
        of::<ThresholdRequest>,
        of::<ThresholdAnswer>,
        THRESHOLDS,
    )),
    read(
        "/v1/policies",
        "Policies that were ever changed",
        SCOPE,
        of::<PolicyList>,
        READS_AT_LEAST,
    ),
    Operation {
        query: &[],
        ..write(
            "post",
            "/v1/policies:validate",
            "What changes would do; nothing is written",
            of::<ChangesRequest>,
            of::<ValidateAnswer>,
            &[400, 408, 409, 413, 415, 422, 503],
        )
    },
    read(
        "/v1/policies/{id}",
        "One policy; its revision is the ETag",
        &[MIN_POSITION],
        of::<PolicyView>,
        READS_ONE_AT_LEAST,
    ),
    write(
        "patch",
        "/v1/policies/{id}",
        "Change one policy",
        of::<PolicyPatchRequest>,
        of::<WriteAnswer>,
        WRITES_ONE,
    ),
    read(
        "/v1/policies/{id}/history",
        "Accepted changes of one policy",
        PAGE,
        of::<HistoryPage>,
        READS_ONE,
    ),
    read(
        "/v1/policies/{id}/at",
        "The change that held then: give one of the three",
        &[
            ("time", "RFC 3339"),
            ("position", "place in the log"),
            ("revision", "of the policy"),
        ],
        of::<HistoryEntry>,
        READS_ONE_AT_LEAST,
    ),
    read(
        "/v1/policies/{id}/diff",
        "Parameters that differ between two revisions",
        &[("from*", "revision"), ("to*", "revision")],
        of::<Difference>,
        READS_ONE,
    ),
    write(
        "post",
        "/v1/policies/{id}/revert",
        "Put the values of an earlier revision back, as a new revision",
        of::<RevertRequest>,
        of::<WriteAnswer>,
        WRITES_ONE,
    ),
    write(
        "post",
        "/v1/changes",
        "Change several policies, all or none",
        of::<ChangesRequest>,
        of::<WriteAnswer>,
        WRITES,
    ),
    read(
        "/v1/parameters",
        "Built-in and custom parameters",
        &[],
        of::<ParametersView>,
        READS,
    ),
    Operation {
        query: &[],
        ..write(
            "put",
            "/v1/parameters/{name}",
            "Register a custom parameter, or replace its schema",
            of::<ParameterRequest>,
            of::<ParametersView>,
            &[400, 408, 409, 412, 413, 415, 422, 503],
        )
    },
    read(
        "/v1/effective",
        "What all policies together want of one router and one model's thresholds, and which scope gave each value",
        &[
            ("model*", "exact model"),
            ("worker_type", "with endpoint"),
            ("endpoint", "with worker_type"),
            ("group", "label of the frontend"),
            MIN_POSITION,
        ],
        of::<EffectiveView>,
        READS_AT_LEAST,
    ),
    Operation {
        answer: Answer::Either(of::<AuditPage>, &["application/x-ndjson", "text/csv"]),
        ..read(
            "/v1/audit",
            "Every record with what became of it",
            AUDIT,
            of::<AuditPage>,
            &[400, 503],
        )
    },
    Operation {
        answer: Answer::Only(&["text/event-stream", "application/x-ndjson"]),
        ..read(
            "/v1/events",
            "Every record after a position, then those to come (each is a Line)",
            &[
                (
                    "after",
                    "position; default 0. The header Last-Event-ID beats it",
                ),
                ("format", "sse (default) or ndjson; also by Accept"),
                (
                    "log_id",
                    "refuse with 409 unless the service follows this log",
                ),
            ],
            of::<Line>,
            &[400, 409, 503],
        )
    },
    Operation {
        answer: Answer::Either(of::<FleetView>, &["text/event-stream"]),
        ..read(
            "/v1/convergence",
            "The fleet as its agents report it (FleetView), or one policy's way through it (Convergence)",
            &[
                ("policy", "id of a policy"),
                ("position", "a change; default the policy's last"),
            ],
            of::<FleetView>,
            &[400, 404, 503],
        )
    },
    Operation {
        query: &[],
        answer: Answer::Nothing,
        ..write(
            "post",
            "/v1/status",
            "An agent's report",
            of::<AgentStatus>,
            of::<AgentStatus>,
            &[400, 408, 413, 415, 422, 503],
        )
    },
    read(
        "/v1/log/head",
        "Which log this service follows, and how far it is",
        &[],
        of::<HeadView>,
        &[400, 503],
    ),
    read(
        "/v1/log/tails",
        "The last record of every subject",
        &[],
        of::<TailsView>,
        &[400, 503],
    ),
    read(
        "/v1/log/at",
        "The record at a position",
        &[("position*", "place in the log")],
        of::<Line>,
        READS_ONE,
    ),
    read(
        "/v1/log/next",
        "The first record on a subject after a position",
        &[("subject*", "subject"), ("after*", "position")],
        of::<Line>,
        READS_ONE,
    ),
    read("/livez", "The process answers", &[], of::<Health>, &[]),
    read(
        "/readyz",
        "200 once the service has caught up with its log; 503 before, and when the log is another one",
        &[],
        of::<Health>,
        &[],
    ),
    Operation {
        answer: Answer::Only(&["application/openmetrics-text"]),
        ..read("/metrics", "Prometheus metrics", &[], of::<Health>, &[])
    },
    read("/openapi.json", "This document", &[], of::<Value>, &[]),
    Operation {
        answer: Answer::Only(&["text/html"]),
        ..read("/", "A page that leads to the API", &[], of::<Health>, &[])
    },
];
