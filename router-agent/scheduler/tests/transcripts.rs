//! Replays what Dynamo frontends answered against the façade: same status, same class of error, same parameters and
//! revision. `golden/transcripts.jsonl` has the recorded cases, each with the state before it; `golden/differences.json` has the
//! deliberate differences with reasons. Prints how many were replayed, equal and different on purpose (`--nocapture`).

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use axum::body::Body;
use axum::http::{Request, Response};
use scheduler::builtin::{BuiltIn, Startup};
use scheduler::busy::{Models, Thresholds};
use scheduler::facade::{self, Frontend};
use scheduler::{Builder, Control, Parameters, Policy, Registry};
use schemas::{Endpoint, Name, Revision, RouterId, RouterKey, WorkerType};
use serde::Deserialize;
use serde_json::Value;
use tower::ServiceExt;

use support::{PATIENCE, Router, router_with};

#[derive(Deserialize)]
struct Case {
    n: usize,
    version: String,
    setup: String,
    case: String,
    method: String,
    path: String,
    content_type: Option<String>,
    body: Option<String>,
    body_hex: Option<String>,
    body_padded: Option<Padded>,
    #[serde(default)]
    disabled: bool,
    status: u16,
    answer: Value,
    #[serde(default)]
    routers: Vec<Before>,
    #[serde(default)]
    models: BTreeMap<String, Triple>,
}

/// Thresholds in the contract's order.
type Triple = (Option<f64>, Option<u64>, Option<f64>);

/// A body of spaces between its start and its end.
#[derive(Deserialize)]
struct Padded {
    start: String,
    end: String,
    bytes: usize,
}

/// A router as it was before the case.
#[derive(Deserialize)]
struct Before {
    router_id: RouterId,
    model: String,
    namespace: String,
    component: String,
    endpoint: String,
    worker_type: WorkerType,
    start: Start,
    revision: u64,
    parameters: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Start {
    #[serde(default)]
    fixed: bool,
    #[serde(default)]
    load_only: bool,
    #[serde(default)]
    given: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Difference {
    why: String,
    status: u16,
    error_begins: String,
    cases: BTreeSet<usize>,
}

impl Case {
    fn bytes(&self) -> Vec<u8> {
        if let Some(padded) = &self.body_padded {
            let spaces = padded.bytes - padded.start.len() - padded.end.len();
            return [&padded.start, &" ".repeat(spaces), &padded.end]
                .map(|part| part.as_bytes())
                .concat();
        }
        if let Some(hex) = &self.body_hex {
            let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            return (0..hex.len()).step_by(2).map(pair).collect();
        }
        self.body.clone().unwrap_or_default().into_bytes()
    }

    /// What the request itself sets; everything else must be as before.
    fn touches(&self, name: &str) -> bool {
        self.body.as_ref().is_some_and(|body| body.contains(name))
    }
}

/// A frontend in the state before a case; `unreachable` are values that ours never takes.
struct Stage {
    app: axum::Router,
    controls: Vec<(RouterId, Control, Option<u64>)>,
    unreachable: BTreeSet<String>,
    _alive: Vec<(Router, scheduler::Registration)>,
    _sets: Vec<std::sync::Arc<scheduler::busy::WorkerSet>>,
}

async fn stage(case: &Case) -> Stage {
    let mut models = Models::new(Thresholds::default());
    let mut sets = Vec::new();
    for (model, (decode, prefill, fraction)) in &case.models {
        let set = models.discover(model, "set");
        set.set(&Thresholds {
            active_decode_blocks_threshold: *decode,
            active_prefill_tokens_threshold: *prefill,
            active_prefill_tokens_threshold_frac: *fraction,
        });
        sets.push(set);
    }
    if case.models.is_empty() {
        models = Models::default();
    }
    let registry = Registry::new();
    let (mut alive, mut controls, mut unreachable) = (Vec::new(), Vec::new(), BTreeSet::new());
    for before in &case.routers {
        let busy = Models::default().discover("unused", "set");
        let policy = policy(before);
        let router = router_with(policy, before.worker_type, 2, None, busy);
        let revision = bring(&router.control, before, &mut unreachable).await;
        controls.push((before.router_id, router.control.clone(), revision));
        let registered = registry.register(before.router_id, key(before), router.control.clone());
        alive.push((router, registered));
    }
    let frontend = Frontend {
        routers: registry,
        models,
        patience: PATIENCE,
    };
    Stage {
        app: facade::routes(frontend, case.disabled).fallback(facade::not_found),
        controls,
        unreachable,
        _alive: alive,
        _sets: sets,
    }
}

fn key(before: &Before) -> RouterKey {
    let name = |text: &str| Name::new(text).unwrap();
    RouterKey {
        model: name(&before.model),
        worker_type: before.worker_type,
        endpoint: Endpoint {
            namespace: name(&before.namespace),
            component: name(&before.component),
            endpoint: name(&before.endpoint),
        },
    }
}

fn policy(before: &Before) -> Policy {
    let startup = Startup {
        load_only: before.start.load_only,
        given: before.start.given.clone(),
        ..Startup::of(before.worker_type)
    };
    let built_in = BuiltIn::new(&startup).unwrap();
    if before.start.fixed {
        let values = Parameters::startup(built_in.parameters());
        return Policy::Fixed(Box::new(built_in.build(&values).unwrap()));
    }
    Policy::Live(Box::new(built_in))
}

/// Changes a new router until it is as it was before the case.
async fn bring(
    control: &Control,
    before: &Before,
    unreachable: &mut BTreeSet<String>,
) -> Option<u64> {
    let mut now = control.read(PATIENCE).await.unwrap()?;
    for (name, value) in &before.parameters {
        let known = now
            .parameters
            .get(name)
            .and_then(schemas::ParameterValue::as_f64);
        if known == value.as_f64() || now.revision.0 == before.revision {
            continue;
        }
        match control
            .update(now.revision, &support::set(name, value.clone()), PATIENCE)
            .await
        {
            Ok(next) => now = next,
            Err(_) => drop(unreachable.insert(name.clone())),
        }
    }
    while now.revision.0 < before.revision {
        let same = support::set(
            "router_temperature",
            now.parameters.number("router_temperature"),
        );
        now = control.update(now.revision, &same, PATIENCE).await.unwrap();
    }
    assert_eq!(now.revision, Revision(before.revision));
    Some(now.revision.0)
}

async fn ask(stage: &Stage, case: &Case) -> (u16, Value) {
    let mut request = Request::builder()
        .method(case.method.as_str())
        .uri(&case.path);
    if let Some(content_type) = &case.content_type {
        request = request.header("content-type", content_type);
    }
    let request = request.body(Body::from(case.bytes())).unwrap();
    let answer: Response<Body> = stage.app.clone().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 24)
        .await
        .unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    (
        status,
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

/// `error` up to its first detail: the class that a client can tell apart.
fn class(answer: &Value) -> String {
    let text = answer
        .get("error")
        .or(answer.get("message"))
        .unwrap_or(answer);
    let text = text.as_str().unwrap_or_default();
    let detail = text.find(": ").map_or(text.len(), |at| at + 2);
    text[..detail]
        .split(" current ")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Equal as JSON with numbers compared as numbers and routers in any order.
fn same(theirs: &Value, ours: &Value, skip: &dyn Fn(&str) -> bool) -> bool {
    match (theirs, ours) {
        (Value::Number(theirs), Value::Number(ours)) => theirs.as_f64() == ours.as_f64(),
        (Value::Array(theirs), Value::Array(ours)) => {
            theirs.len() == ours.len()
                && theirs
                    .iter()
                    .all(|one| ours.iter().any(|other| same(one, other, skip)))
        }
        (Value::Object(theirs), Value::Object(ours)) => {
            theirs.len() == ours.len()
                && theirs.iter().all(|(name, one)| {
                    skip(name) || ours.get(name).is_some_and(|other| same(one, other, skip))
                })
        }
        (
            Value::Null
            | Value::Bool(_)
            | Value::String(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_),
            _,
        ) => theirs == ours,
    }
}

#[derive(Default)]
struct Tally {
    replayed: usize,
    equal: usize,
    word_for_word: usize,
    inherited: usize,
    different: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

async fn replay(case: &Case, differences: &[Difference], tally: &mut Tally) {
    let stage = stage(case).await;
    let (status, answer) = ask(&stage, case).await;
    tally.replayed += 1;
    let skip = |name: &str| stage.unreachable.contains(name) && !case.touches(name);
    let equal = if case.status == 200 {
        status == 200 && same(&case.answer, &answer, &skip)
    } else {
        status == case.status && class(&case.answer) == class(&answer)
    };
    let wrong = |what: &str| {
        format!(
            "{} {} {} {}: {what}\n    theirs {} {}\n    ours   {status} {answer}",
            case.n, case.version, case.setup, case.case, case.status, case.answer
        )
    };
    for (id, control, before) in &stage.controls {
        let now = control
            .read(PATIENCE)
            .await
            .unwrap()
            .map(|now| now.revision.0);
        let changed = status == 200 && case.method == "PATCH";
        let expected = before.map(|before| before + u64::from(changed));
        if now != expected {
            tally.wrong.push(wrong(&format!(
                "router {id} is at {now:?}, not at {expected:?}"
            )));
        }
    }
    match differences
        .iter()
        .find(|difference| difference.cases.contains(&case.n))
    {
        None if equal => {
            tally.equal += 1;
            tally.word_for_word += usize::from(same(&case.answer, &answer, &|_| false));
            tally.inherited += usize::from(!stage.unreachable.is_empty());
        }
        None => tally.wrong.push(wrong("not equal")),
        Some(_) if equal => tally.wrong.push(wrong("equal, though listed as different")),
        Some(listed) => {
            let text = answer["error"]
                .as_str()
                .or(answer.as_str())
                .unwrap_or_default();
            if status == listed.status && text.starts_with(&listed.error_begins) {
                *tally.different.entry(listed.why.clone()).or_default() += 1;
            } else {
                tally.wrong.push(wrong("different, but not as listed"));
            }
        }
    }
}

#[tokio::test]
async fn the_facade_answers_as_recorded_or_differs_on_purpose() {
    let cases = include_str!("../golden/transcripts.jsonl");
    let differences: Vec<Difference> =
        serde_json::from_str(include_str!("../golden/differences.json")).unwrap();
    let mut tally = Tally::default();
    for line in cases.lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        replay(&case, &differences, &mut tally).await;
    }
    println!(
        "transcripts: {} replayed, {} equal ({} of them word for word), {} deliberately different",
        tally.replayed,
        tally.equal,
        tally.word_for_word,
        tally.different.values().sum::<usize>()
    );
    println!(
        "  {} of the equal ones start from a state with a value that ours refuses; it is not compared",
        tally.inherited
    );
    for (why, count) in &tally.different {
        println!("  {count:>3}  {why}");
    }
    assert!(tally.replayed > 500, "the golden file lost its cases");
    assert!(
        tally.wrong.is_empty(),
        "{} wrong:\n{}",
        tally.wrong.len(),
        tally.wrong.join("\n")
    );
}
