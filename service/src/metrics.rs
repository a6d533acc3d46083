//! What is counted. Names start with `router_policy_`, units come last.
//!
//! | name | labels | what |
//! |---|---|---|
//! | `writes_total` | `outcome` | writes by outcome: accepted, repeated, refused, conflict, unknown, unavailable, overloaded |
//! | `write_duration_seconds` | | from request to verdict |
//! | `writes_in_progress` | | now |
//! | `http_requests_total` | `route`, `method`, `status` | answered requests |
//! | `http_request_duration_seconds` | `route` | until the head of the answer |
//! | `records_total` | `verdict` | records folded in since the start |
//! | `chain_breaks_total` | | accepted records whose hash of their predecessor is wrong |
//! | `projection_position`, `log_head_position` | | positions |
//! | `log_condition` | `condition` | 1 for the one that holds |
//! | `policies`, `policies_stopped` | | known, and stopped by an unreadable record |
//! | `store_rebuilds_total`, `store_errors_total` | | of the local store |
//! | `agents` | `state` | fresh and stale agents |
//! | `agents_refused_total` | | reports refused because too many agents are remembered |
//! | `streams` | | open event and convergence streams |
//! | `answers_waiting_kib` | | large answers that their clients have not taken yet |
//! | `limits_reached_total` | `limit` | times that a bound was reached: writes, streams, connections, answers |

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use schemas::Position;
use schemas::api::LogCondition;
use schemas::state::{State, Verdict};

macro_rules! labels {
    ($name:ident { $($field:ident: $kind:ty),+ }) => {
        #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
        struct $name { $($field: $kind),+ }
    };
}

labels!(Outcome { outcome: &'static str });
labels!(Request {
    route: String,
    method: String,
    status: u32
});
labels!(Route { route: String });
labels!(RecordVerdict { verdict: &'static str });
labels!(InCondition { condition: &'static str });
labels!(AgentState { state: &'static str });
labels!(Limit { limit: &'static str });

/// Everything that is counted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    writes: Family<Outcome, Counter>,
    write_duration: Histogram,
    /// Writes in progress.
    pub writes_in_progress: Gauge,
    requests: Family<Request, Counter>,
    request_duration: Family<Route, Histogram>,
    records: Family<RecordVerdict, Counter>,
    chain_breaks: Counter,
    projection_position: Gauge,
    log_head_position: Gauge,
    condition: Family<InCondition, Gauge>,
    policies: Gauge,
    policies_stopped: Gauge,
    /// Local stores that were made anew.
    pub store_rebuilds: Counter,
    /// Failures of the local store.
    pub store_errors: Counter,
    agents: Family<AgentState, Gauge>,
    /// Reports that were refused because too many agents are remembered.
    pub agents_refused: Counter,
    /// Open streams.
    pub streams: Gauge,
    answers_waiting_kib: Gauge,
    limits: Family<Limit, Counter>,
}

fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.000_5, 2.0, 16))
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("router_policy");
        macro_rules! register {
            ($name:literal, $help:literal, $metric:expr) => {{
                let metric = $metric;
                registry.register($name, $help, metric.clone());
                metric
            }};
        }
        Metrics {
            writes: register!("writes", "Writes by outcome", Family::default()),
            write_duration: register!(
                "write_duration_seconds",
                "From request to verdict",
                durations()
            ),
            writes_in_progress: register!(
                "writes_in_progress",
                "Writes in progress",
                Gauge::default()
            ),
            requests: register!("http_requests", "Answered requests", Family::default()),
            request_duration: register!(
                "http_request_duration_seconds",
                "Until the head of the answer",
                Family::new_with_constructor(durations as fn() -> Histogram)
            ),
            records: register!("records", "Records folded in", Family::default()),
            chain_breaks: register!(
                "chain_breaks",
                "Accepted records whose hash of their predecessor is wrong",
                Counter::default()
            ),
            projection_position: register!(
                "projection_position",
                "Everything up to here is folded in",
                Gauge::default()
            ),
            log_head_position: register!(
                "log_head_position",
                "Last record of the log when it was asked last",
                Gauge::default()
            ),
            condition: register!(
                "log_condition",
                "How the service stands to its log",
                Family::default()
            ),
            policies: register!("policies", "Policies ever changed", Gauge::default()),
            policies_stopped: register!(
                "policies_stopped",
                "Policies that hold a record that cannot be read",
                Gauge::default()
            ),
            store_rebuilds: register!(
                "store_rebuilds",
                "Local stores that were made anew",
                Counter::default()
            ),
            store_errors: register!(
                "store_errors",
                "Failures of the local store",
                Counter::default()
            ),
            agents: register!("agents", "Agents by freshness", Family::default()),
            agents_refused: register!(
                "agents_refused",
                "Reports refused because too many agents are remembered",
                Counter::default()
            ),
            streams: register!("streams", "Open streams", Gauge::default()),
            answers_waiting_kib: register!(
                "answers_waiting_kib",
                "Large answers that their clients have not taken yet, in KiB",
                Gauge::default()
            ),
            limits: register!(
                "limits_reached",
                "Times that a bound was reached",
                Family::default()
            ),
            registry,
        }
    }
}

impl Metrics {
    /// The Prometheus text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    pub(crate) fn write(&self, outcome: &'static str, took: Duration) {
        self.writes.get_or_create(&Outcome { outcome }).inc();
        self.write_duration.observe(took.as_secs_f64());
    }

    pub(crate) fn request(&self, route: &str, method: &str, status: u16, took: Duration) {
        self.requests
            .get_or_create(&Request {
                route: route.to_owned(),
                method: method.to_owned(),
                status: u32::from(status),
            })
            .inc();
        self.request_duration
            .get_or_create(&Route {
                route: route.to_owned(),
            })
            .observe(took.as_secs_f64());
    }

    pub(crate) fn record(&self, verdict: &Verdict) {
        let name = match verdict {
            Verdict::Accepted { chained } => {
                if !chained {
                    self.chain_breaks.inc();
                }
                "accepted"
            }
            Verdict::Void { .. } => "void",
            Verdict::Unreadable { .. } => "unreadable",
        };
        self.records
            .get_or_create(&RecordVerdict { verdict: name })
            .inc();
    }

    pub(crate) fn projected(&self, state: &State) {
        self.projection_position.set(gauge(state.position.0));
        self.policies.set(gauge(state.policies.len() as u64));
        let stopped = if state.stopped.is_some() {
            state.policies.len().max(1)
        } else {
            state.stops.len()
        };
        self.policies_stopped.set(gauge(stopped as u64));
    }

    pub(crate) fn head(&self, position: Position) {
        self.log_head_position.set(gauge(position.0));
    }

    pub(crate) fn log_condition(&self, now: LogCondition) {
        let all = [
            (LogCondition::Starting, "starting"),
            (LogCondition::Following, "following"),
            (LogCondition::Away, "away"),
            (LogCondition::Foreign, "foreign"),
        ];
        for (one, condition) in all {
            self.condition
                .get_or_create(&InCondition { condition })
                .set(i64::from(one == now));
        }
    }

    pub(crate) fn agents(&self, fresh: usize, stale: usize) {
        for (state, count) in [("fresh", fresh), ("stale", stale)] {
            self.agents
                .get_or_create(&AgentState { state })
                .set(gauge(count as u64));
        }
    }

    pub(crate) fn answers_waiting(&self, kib: u64) {
        self.answers_waiting_kib.set(gauge(kib));
    }

    pub(crate) fn limit(&self, limit: &'static str) {
        self.limits.get_or_create(&Limit { limit }).inc();
    }
}

fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
