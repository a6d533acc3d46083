//! An agent and live schedulers of Dynamo's in one process: convergence, a refusal that is reported, drift put back.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use common::{Log, agent_beside, applied, name, until};
use router_agent::target::TargetError;
use router_agent::{InProcess, PolicyTarget as _};
use scheduler::builtin::{BuiltIn, Startup};
use scheduler::busy::{Models, Thresholds, WorkerSet};
use scheduler::dynamo::{Plan, Scheduler, WorkerConfigLike, WorkerId, start};
use scheduler::{Bell, Change, Control, LiveSelector, Registration, Registry};
use schemas::status::ApplyState;
use schemas::{
    ParameterName, ParameterValue, Patch, PolicyKind, Revision, RouterId, RouterKey, WorkerType,
};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, PartialEq)]
struct Hardware;

impl WorkerConfigLike for Hardware {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }
    fn data_parallel_size(&self) -> u32 {
        1
    }
    fn max_num_batched_tokens(&self) -> Option<u64> {
        None
    }
    fn total_kv_blocks(&self) -> Option<u64> {
        Some(1_000)
    }
}

/// A router with everything that keeps it.
struct Router {
    control: Control,
    _scheduler: Arc<Scheduler<Hardware>>,
    _workers: watch::Sender<HashMap<WorkerId, Hardware>>,
    _registration: Registration,
    _stop: DropGuard,
}

fn router(target: &InProcess, number: u128, worker_type: WorkerType, load_only: bool) -> Router {
    let startup = Startup {
        load_only,
        ..Startup::of(worker_type)
    };
    let policy = BuiltIn::policy(&startup).unwrap();
    let (selector, unattached) = LiveSelector::new(policy).unwrap();
    let (workers, seen) = watch::channel(HashMap::from([(0, Hardware), (1, Hardware)]));
    let busy: Arc<WorkerSet> = target.models.discover("m", worker_type.as_str());
    let stop = CancellationToken::new();
    let plan = Plan {
        workers: seen,
        block_size: 16,
        worker_type,
        queue_threshold: None,
        recheck_interval: Duration::from_secs(3_600),
        track_prefill_tokens: true,
        busy,
        stop: stop.clone(),
    };
    let (scheduler, control) = start(plan, selector, unattached);
    let key = RouterKey {
        model: name("m"),
        worker_type,
        endpoint: "dynamo/backend/generate".parse().unwrap(),
    };
    let id = RouterId(Uuid::from_u128(number));
    Router {
        _registration: target.routers.register(id, key, control.clone()),
        control,
        _scheduler: scheduler,
        _workers: workers,
        _stop: stop.drop_guard(),
    }
}

fn frontend() -> InProcess {
    InProcess {
        routers: Registry::new(),
        models: Models::new(Thresholds::default()),
        patience: PATIENCE,
    }
}

async fn value(router: &Router, name: &str) -> f64 {
    let now = router.control.read(PATIENCE).await.unwrap().unwrap();
    now.parameters.number(name)
}

#[tokio::test]
async fn an_agent_converges_the_schedulers_of_its_own_process_and_puts_drift_back() {
    let folder = tempfile::tempdir().unwrap();
    let (log, target) = (Log::new(1), frontend());
    let first = router(&target, 1, WorkerType::Aggregated, false);
    let agent = agent_beside(folder.path(), &log, &target).await;
    let position = log
        .set(
            PolicyKind::WorkerSelection,
            &[("router_temperature", 0.3), ("overlap_score_credit", 0.5)],
        )
        .await;
    until(&agent, "the policy", |status| {
        applied(status, None, position)
    })
    .await;
    assert_eq!(value(&first, "router_temperature").await, 0.3);
    assert_eq!(value(&first, "overlap_score_credit").await, 0.5);

    // A router that comes later is brought up too; one that goes is no longer reported.
    let second = router(&target, 2, WorkerType::Prefill, false);
    until(&agent, "the second router", |status| {
        status.frontends[0].routers.len() == 2 && applied(status, None, position)
    })
    .await;
    assert_eq!(value(&second, "router_temperature").await, 0.3);
    drop(second);
    until(&agent, "the second router's end", |status| {
        status.frontends[0].routers.len() == 1
    })
    .await;

    // Behind the agent's back.
    let now = first.control.read(PATIENCE).await.unwrap().unwrap();
    let foreign = Change::Patch([("router_temperature".to_owned(), 2.into())].into());
    let foreign = first.control.update(now.revision, &foreign, PATIENCE);
    assert_eq!(foreign.await.unwrap().revision, now.revision.next());
    until(&agent, "the drift", |status| {
        status.frontends[0].routers[0].drifts > 0 && applied(status, None, position)
    })
    .await;
    assert_eq!(value(&first, "router_temperature").await, 0.3);

    let thresholds = log
        .set(
            PolicyKind::BusyThreshold,
            &[("active_decode_blocks_threshold", 0.5)],
        )
        .await;
    until(&agent, "the thresholds", |status| {
        applied(status, None, thresholds)
    })
    .await;
    let listed = target.models.read("m").unwrap();
    assert_eq!(listed.active_decode_blocks_threshold, Some(0.5));
    assert!(agent.stop().await);
}

#[tokio::test]
async fn a_load_only_router_refuses_cache_weights_and_the_others_take_them() {
    let folder = tempfile::tempdir().unwrap();
    let (log, target) = (Log::new(1), frontend());
    let caching = router(&target, 1, WorkerType::Aggregated, false);
    let load_only = router(&target, 2, WorkerType::Prefill, true);
    let agent = agent_beside(folder.path(), &log, &target).await;
    let position = log
        .set(
            PolicyKind::WorkerSelection,
            &[("overlap_score_credit", 0.5)],
        )
        .await;
    let status = until(&agent, "both verdicts", |status| {
        let routers = &status.frontends[0].routers;
        routers.len() == 2
            && routers
                .iter()
                .all(|router| router.position >= position && router.state != ApplyState::Pending)
    })
    .await;
    let routers = &status.frontends[0].routers;
    let states: Vec<ApplyState> = routers.iter().map(|router| router.state).collect();
    assert_eq!(states, [ApplyState::Applied, ApplyState::Refused]);
    let words = routers[1].error.clone().unwrap();
    assert!(
        words.contains("replacement changes routing requirements"),
        "{words}"
    );
    assert_eq!(value(&caching, "overlap_score_credit").await, 0.5);
    assert_eq!(value(&load_only, "overlap_score_credit").await, 0.0);
    assert!(agent.stop().await);
}

#[tokio::test]
async fn refusals_are_told_apart_as_over_http() {
    let target = frontend();
    let there = router(&target, 1, WorkerType::Aggregated, false);
    let id = RouterId(Uuid::from_u128(1));
    let patch = |parameter: &str, number: f64| {
        let name = ParameterName::new(parameter).unwrap();
        Patch::from([(name, Some(ParameterValue::number(number)))])
    };
    let warm = patch("router_temperature", 0.5);
    let absent = RouterId(Uuid::from_u128(9));
    let gone = target.apply(absent, Revision(0), &warm).await;
    assert_eq!(gone, Err(TargetError::Gone));
    let stale = target.apply(id, Revision(7), &warm).await;
    assert_eq!(stale, Err(TargetError::Conflict));
    for (bad, status) in [
        (patch("router_temperature", -1.0), 422),
        (patch("nonsense", 1.0), 422),
        (Patch::new(), 400),
    ] {
        let refused = target.apply(id, Revision(0), &bad).await;
        let same =
            matches!(&refused, Err(TargetError::Refused { status: found, .. }) if *found == status);
        assert!(same, "{bad:?}: {refused:?}");
    }
    let applied = target.apply(id, Revision(0), &warm).await.unwrap();
    assert_eq!(applied.revision, Revision(1));
    let threshold = |name: &str, number: f64| {
        [(
            ParameterName::new(name).unwrap(),
            ParameterValue::number(number),
        )]
        .into()
    };
    let half = threshold("active_decode_blocks_threshold", 0.5);
    let unknown = target.set_thresholds(&name("other"), &half).await;
    assert_eq!(unknown, Err(TargetError::Gone));
    let too_much = threshold("active_decode_blocks_threshold", 1.5);
    let refused = target.set_thresholds(&name("m"), &too_much).await;
    assert!(matches!(
        refused,
        Err(TargetError::Refused { status: 400, .. })
    ));
    drop(there);
    let retired = target.apply(id, Revision(1), &warm).await;
    assert_eq!(retired, Err(TargetError::Gone));
    assert!(target.list().await.unwrap().routers.is_empty());
}

/// A scheduler that is there and never takes its turn.
struct Stalled;

impl Bell for Stalled {
    fn ring(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(std::future::pending())
    }
    fn is_live(&self) -> bool {
        true
    }
    fn ranks(&self) -> usize {
        1
    }
}

#[tokio::test]
async fn a_scheduler_that_does_not_answer_in_time_is_a_transient_failure() {
    let mut target = frontend();
    target.patience = Duration::from_millis(50);
    let _well = router(&target, 1, WorkerType::Aggregated, false);
    let policy = BuiltIn::policy(&Startup::of(WorkerType::Decode)).unwrap();
    let (_selector, unattached) = LiveSelector::new(policy).unwrap();
    let stalled = unattached.attach_bell(Arc::new(Stalled));
    let key = RouterKey {
        model: name("m"),
        worker_type: WorkerType::Decode,
        endpoint: "dynamo/backend/generate".parse().unwrap(),
    };
    let id = RouterId(Uuid::from_u128(2));
    let _registration = target.routers.register(id, key, stalled);
    let parameter = ParameterName::new("router_temperature").unwrap();
    let patch = Patch::from([(parameter, Some(ParameterValue::number(0.5)))]);
    let late = target.apply(id, Revision(0), &patch).await;
    assert!(
        matches!(late, Err(TargetError::Transient { .. })),
        "{late:?}"
    );
    let listed = target.list().await.unwrap().routers;
    let ids: Vec<u128> = listed.keys().map(|id| id.0.as_u128()).collect();
    assert_eq!(ids, [1], "the healthy one stays listed");
}
