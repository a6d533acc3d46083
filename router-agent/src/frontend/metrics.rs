//! `/metrics` in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use super::{Counts, Reference};

type Column = (&'static str, &'static str, fn(&Counts) -> u64);

const COLUMNS: [Column; 3] = [
    (
        "requests_total",
        "Requests that a worker served.",
        |counts| counts.requests,
    ),
    (
        "prompt_blocks_total",
        "Full KV blocks of the prompts that it prefilled.",
        |counts| counts.prompt_blocks,
    ),
    (
        "kv_hit_blocks_total",
        "Those of them that the worker held already.",
        |counts| counts.hit_blocks,
    ),
];

/// Everything that is counted.
pub(super) fn text(frontend: &Reference) -> String {
    let all = frontend.counts();
    let mut out = String::new();
    let mut line = |text: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(out, "{text}");
    };
    for (name, help, value) in COLUMNS {
        line(format!("# HELP router_frontend_{name} {help}"));
        line(format!("# TYPE router_frontend_{name} counter"));
        for one in &all {
            let (model, role, worker) = (escaped(one.model.as_str()), one.worker_type, one.worker);
            let value = value(&one.counts);
            line(format!(
                "router_frontend_{name}{{model=\"{model}\",worker_type=\"{role}\",worker=\"{worker}\"}} {value}"
            ));
        }
    }
    line("# HELP router_frontend_kv_hit_rate Share of prompt blocks that were held, since each worker was added.".to_owned());
    line("# TYPE router_frontend_kv_hit_rate gauge".to_owned());
    for model in frontend.models() {
        let sum = |value: fn(&Counts) -> u64| -> u64 {
            let of_model = all.iter().filter(|one| one.model == model);
            of_model.map(|one| value(&one.counts)).sum()
        };
        let (blocks, hits) = (sum(|one| one.prompt_blocks), sum(|one| one.hit_blocks));
        let rate = hits as f64 / blocks.max(1) as f64;
        let model = escaped(model.as_str());
        line(format!(
            "router_frontend_kv_hit_rate{{model=\"{model}\"}} {rate}"
        ));
    }
    line("# HELP router_frontend_serving Requests that are being served.".to_owned());
    line("# TYPE router_frontend_serving gauge".to_owned());
    line(format!("router_frontend_serving {}", frontend.serving()));
    line("# HELP router_frontend_limit_total How often a bound was reached.".to_owned());
    line("# TYPE router_frontend_limit_total counter".to_owned());
    for (name, counter) in [
        ("busy_threshold", &frontend.refused.overloaded),
        ("requests", &frontend.refused.crowded),
        ("connections", &frontend.refused.connections),
    ] {
        let value = counter.load(Ordering::Relaxed);
        line(format!(
            "router_frontend_limit_total{{limit=\"{name}\"}} {value}"
        ));
    }
    out
}

fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
