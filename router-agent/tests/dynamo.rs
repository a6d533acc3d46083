//! One agent on a real Dynamo 1.7 frontend: runs when `DYNAMO_URL` names one that nobody else uses
//! (`DYNAMO_URL=http://127.0.0.1:8000 cargo nextest run -p router-agent --test dynamo`), and passes unasked without.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Log, Reader, applied, until};
use event_log::ReaderWiring;
use event_log::memory::MemoryBoard;
use router_agent::{Config, DynamoHttp, Frontend, PolicyTarget as _, Timeouts};
use schemas::status::{ApplyState, Capability};
use schemas::{Overlay, ParameterName, ParameterValue, PolicyKind, Position, RouterId, Scope};

const DECODE: &str = "active_decode_blocks_threshold";
const TOKENS: &str = "active_prefill_tokens_threshold";
const FRACTION: &str = "active_prefill_tokens_threshold_frac";

fn parameter(name: &str) -> ParameterName {
    ParameterName::new(name).unwrap()
}

#[tokio::test]
async fn a_real_frontend_is_kept_on_the_policy() {
    let Ok(url) = std::env::var("DYNAMO_URL") else {
        return;
    };
    let target = DynamoHttp::new(&url, Timeouts::default()).unwrap();
    let before = target.list().await.unwrap();
    assert_eq!(before.capability, Capability::RouterPolicy);
    let (router, view) = before.routers.first_key_value().unwrap();
    let startup = view.configuration.clone().unwrap().parameters;

    let folder = tempfile::tempdir().unwrap();
    let log = Log::new(1);
    let config = Config {
        poll_interval: Duration::from_millis(200),
        ..Config::new(
            folder.path(),
            vec![Frontend::dynamo(&url, Timeouts::default()).unwrap()],
        )
    };
    let wiring = ReaderWiring {
        log: Arc::new(Reader(log.clone())),
        board: Arc::new(MemoryBoard::default()),
    };
    let agent = router_agent::start(config, wiring).await.unwrap();
    until(&agent, "the first listing", |status| {
        applied(status, None, Position::START)
    })
    .await;

    let listed = |name: &'static str| {
        let target = &target;
        async move {
            let listing = target.list().await.unwrap();
            let view = listing.routers.values().next().unwrap();
            let configuration = view.configuration.as_ref().unwrap();
            configuration.parameters[&parameter(name)].as_f64().unwrap()
        }
    };
    let position = log
        .set(PolicyKind::WorkerSelection, &[("router_temperature", 0.5)])
        .await;
    until(&agent, "the policy", |status| {
        applied(status, None, position)
    })
    .await;
    assert_eq!(listed("router_temperature").await, 0.5);

    // Behind the agent's back.
    meddle(&target, *router).await;
    let status = until(&agent, "drift put back", |status| {
        applied(status, None, position) && status.frontends[0].routers[0].drifts > 0
    })
    .await;
    assert_eq!(status.frontends[0].routers[0].drifts, 1);
    assert_eq!(listed("router_temperature").await, 0.5);

    let limits: Overlay = [
        (parameter(DECODE), ParameterValue::number(0.5)),
        (parameter(TOKENS), ParameterValue::integer(1_000)),
        (parameter(FRACTION), ParameterValue::number(1.5)),
    ]
    .into();
    let scope = Scope::default();
    let position = log
        .set_overlay(PolicyKind::BusyThreshold, &scope, limits.clone())
        .await;
    let status = until(&agent, "the thresholds", |status| {
        applied(status, None, position)
    })
    .await;
    assert_eq!(status.frontends[0].thresholds[0].thresholds, limits);
    let position = log
        .set_overlay(PolicyKind::BusyThreshold, &scope, Overlay::new())
        .await;
    let status = until(&agent, "the thresholds' end", |status| {
        applied(status, None, position)
    })
    .await;
    let off = &status.frontends[0].thresholds[0].thresholds;
    for name in [DECODE, TOKENS, FRACTION].map(parameter) {
        let startup = before.thresholds.values().next().unwrap()[&name].clone();
        let expected = startup.or_else(|| router_agent::threshold::off(&name));
        assert_eq!(off.get(&name), expected.as_ref());
    }

    let position = log
        .set(PolicyKind::WorkerSelection, &[("no_such_parameter", 1.0)])
        .await;
    let status = until(&agent, "the refusal", |status| {
        let router = &status.frontends[0].routers[0];
        router.state == ApplyState::Refused && router.position >= position
    })
    .await;
    let words = status.frontends[0].routers[0].error.clone().unwrap();
    assert!(words.contains("invalid policy parameters"), "{words}");
    let position = log.set(PolicyKind::WorkerSelection, &[]).await;
    until(&agent, "the end", |status| applied(status, None, position)).await;
    let after = target.list().await.unwrap();
    let configuration = after.routers[router].configuration.clone().unwrap();
    assert_eq!(configuration.parameters, startup);
    assert!(agent.stop().await);
}

/// A careless operator.
async fn meddle(target: &DynamoHttp, router: RouterId) {
    let listing = target.list().await.unwrap();
    let revision = listing.routers[&router]
        .configuration
        .as_ref()
        .unwrap()
        .revision;
    let patch = [
        (
            parameter("router_temperature"),
            Some(ParameterValue::number(3.0)),
        ),
        (
            parameter("prefill_load_scale"),
            Some(ParameterValue::number(2.0)),
        ),
    ];
    target.apply(router, revision, &patch.into()).await.unwrap();
}
