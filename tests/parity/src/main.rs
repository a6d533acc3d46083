//! Proves selection by selection that our built-in policy picks what Dynamo 1.6.1's default policy picks.
//!
//! `parity [CASES] [SEED]`: random worker tables, requests, roles and parameters; both policies draw from one random
//! stream under one seed, so ties and temperatures are compared too, and so is how much of the stream each used. Every
//! case runs twice: with a policy built from startup values, and with a live one that got there by an update.
//! Prints cases, what they covered, and mismatches; ends with 1 if there is one.

mod stream;
mod table;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dynamo_custom_policy_builtin::default_factory;
use dynamo_kv_router::plugins::worker_selection::WorkerSelectionPolicy;
use dynamo_kv_router::{KvRouterConfig, KvSchedulerError, RoutingPartitionRef, WorkerSelector};
use scheduler::builtin::{BuiltIn, Startup};
use scheduler::{Bell, Builder, Change, Control, LiveSelector, Parameters};
use schemas::WorkerType;
use serde_json::Value;

use table::{Drawn, Table, Worker};

/// Startup or live, per role.
const WAYS: [&str; 2] = ["startup", "live"];

/// Turns nothing: `settle` does.
struct Silent;

impl Bell for Silent {
    fn ring(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async { true })
    }
    fn is_live(&self) -> bool {
        true
    }
    fn ranks(&self) -> usize {
        512
    }
}

/// One live selector per role, updated from case to case as a fleet's would be.
struct Live {
    selector: LiveSelector,
    control: Control,
    revision: schemas::Revision,
}

impl Live {
    fn new(role: WorkerType, conditional_decode: bool) -> Live {
        let startup = Startup {
            conditional_decode,
            ..Startup::of(role)
        };
        let policy = BuiltIn::policy(&startup).expect("defaults are in range");
        let (selector, unattached) = LiveSelector::new(policy).expect("defaults build");
        Live {
            selector,
            control: unattached.attach_bell(Arc::new(Silent)),
            revision: schemas::Revision::ZERO,
        }
    }

    async fn set(&mut self, drawn: &Drawn) {
        let value = |(name, value): (&&str, &f64)| ((*name).to_owned(), Value::from(*value));
        let patch: BTreeMap<String, Value> = drawn.resolved().iter().map(value).collect();
        let change = Change::Patch(patch);
        let update = self
            .control
            .update(self.revision, &change, Duration::from_secs(60));
        let settle = async { self.selector.settle() };
        let (updated, ()) = futures::future::join(update, settle).await;
        self.revision = updated.expect("a drawn value fits").revision;
    }
}

fn reference(drawn: &Drawn) -> WorkerSelectionPolicy {
    let config = KvRouterConfig {
        overlap_score_credit: drawn.value("overlap_score_credit"),
        overlap_score_credit_decay: drawn.value("overlap_score_credit_decay"),
        prefill_load_scale: drawn.value("prefill_load_scale"),
        decode_active_request_weight: drawn.value("decode_active_request_weight"),
        host_cache_hit_weight: drawn.value("host_cache_hit_weight"),
        disk_cache_hit_weight: drawn.value("disk_cache_hit_weight"),
        shared_cache_multiplier: Some(drawn.value("shared_cache_multiplier")),
        router_temperature: drawn.value("router_temperature"),
        conditional_disagg_enabled: drawn.conditional_decode,
        ..KvRouterConfig::default()
    };
    let role = scheduler::dynamo::worker_type(drawn.role);
    default_factory()(&config, role, RoutingPartitionRef::new("model", "default"))
}

fn ours(drawn: &Drawn) -> WorkerSelectionPolicy {
    let value = |(name, value): (&&str, &f64)| ((*name).to_owned(), Value::from(*value));
    let startup = Startup {
        conditional_decode: drawn.conditional_decode,
        given: drawn.given().iter().map(value).collect(),
        ..Startup::of(drawn.role)
    };
    let built_in = BuiltIn::new(&startup).expect("a drawn value is in range");
    let values = Parameters::startup(built_in.parameters());
    built_in.build(&values).expect("it builds").policy
}

/// The pick, and where the random stream stands after it.
fn pick(selector: &impl WorkerSelector<Worker>, table: &Table, seed: u64) -> (String, u64) {
    fastrand::seed(seed);
    let picked = match selector.select_worker(table.input()) {
        Ok(selection) => format!("{:?}", selection.worker),
        Err(KvSchedulerError::NoEndpoints) => "no endpoints".to_owned(),
        Err(other) => format!("error: {other}"),
    };
    (picked, fastrand::u64(..))
}

#[derive(Default)]
struct Tally {
    selections: usize,
    mismatches: usize,
    largest: usize,
    covered: BTreeMap<String, usize>,
}

impl Tally {
    fn compare(
        &mut self,
        way: &str,
        case: u64,
        drawn: &Drawn,
        theirs: &(String, u64),
        ours: &(String, u64),
    ) {
        self.selections += 1;
        if theirs != ours {
            self.mismatches += 1;
            if self.mismatches <= 10 {
                println!(
                    "mismatch in case {case} ({way}): theirs {theirs:?}, ours {ours:?}, {drawn:?}"
                );
            }
        }
    }
}

async fn run(cases: u64, seed: u64) -> Tally {
    let mut tally = Tally::default();
    let mut live: BTreeMap<(WorkerType, bool), Live> = BTreeMap::new();
    for case in 0..cases {
        let mut rng = fastrand::Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(case));
        let drawn = Drawn::new(&mut rng);
        let table = Table::new(&mut rng);
        let draw = rng.u64(..);
        let theirs = pick(&reference(&drawn), &table, draw);
        let startup = pick(&ours(&drawn), &table, draw);
        tally.compare(WAYS[0], case, &drawn, &theirs, &startup);
        let router = live
            .entry((drawn.role, drawn.conditional_decode))
            .or_insert_with(|| Live::new(drawn.role, drawn.conditional_decode));
        router.set(&drawn).await;
        let updated = pick(&router.selector, &table, draw);
        tally.compare(WAYS[1], case, &drawn, &theirs, &updated);
        tally.largest = tally.largest.max(table.workers.len());
        for what in drawn
            .covers()
            .into_iter()
            .chain(table.covers())
            .chain([outcome(&theirs.0)])
        {
            *tally.covered.entry(what).or_default() += 1;
        }
    }
    tally
}

fn outcome(picked: &str) -> String {
    let picked = if picked.starts_with("Worker") {
        "a worker"
    } else {
        picked
    };
    format!("outcome: {picked}")
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |default| arguments.next().and_then(Result::ok).unwrap_or(default);
    let (cases, seed) = (next(12_000), next(1));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.expect("a runtime");
    let tally = runtime.block_on(run(cases, seed));
    println!(
        "parity: {cases} random tables of 1 to {} workers (seed {seed}), {} selections compared, {} mismatches",
        tally.largest, tally.selections, tally.mismatches
    );
    for (what, count) in &tally.covered {
        println!("  {count:>6}  {what}");
    }
    let scenarios = cases.div_ceil(100);
    let (requests, wrong) = runtime.block_on(stream::run(scenarios, seed));
    println!(
        "parity: {scenarios} pairs of schedulers, {requests} requests booked and released in both, {wrong} mismatches"
    );
    if tally.mismatches + wrong > 0 {
        std::process::exit(1);
    }
}
