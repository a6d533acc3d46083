//! Models, workers and frontends that go and come back while changes and requests stream in: nothing leaks, nothing is missed.
//!
//! Tasks are counted per runtime, that is per test; threads per process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::sync::{Arc, Weak};
use std::time::Duration;

use common::site::role;
use common::{Log, agent_beside, applied, name, until};
use router_agent::Running;
use router_agent::frontend::traffic::Traffic;
use router_agent::frontend::{Hardware, ModelPlan, Reference};
use scheduler::Control;
use scheduler::busy::Thresholds;
use schemas::{PolicyKind, Position, WorkerType};
use tokio::sync::watch;

const ROUNDS: u64 = 4;
const TURNS: u64 = 5;

/// Disaggregated: two routers, two schedulers, two indexes.
const ROLES: [WorkerType; 2] = [WorkerType::Prefill, WorkerType::Decode];

fn plan() -> ModelPlan {
    let small = Hardware {
        kv_blocks: 64,
        ..Hardware::default()
    };
    let roles = ROLES.map(|one| role(one, small.clone()));
    common::site::plan(roles.to_vec())
}

/// Changes the policy until told to stop, as fast as the agent follows; the answer is the last change's value and position.
async fn stream(log: &Log, agent: &Running, stop: watch::Receiver<bool>) -> (f64, Position) {
    let mut number = 0_u32;
    let mut status = agent.status();
    loop {
        number += 1;
        let value = f64::from(number % 100) / 100.0;
        let position = log
            .set(
                PolicyKind::WorkerSelection,
                &[("router_temperature", value)],
            )
            .await;
        if *stop.borrow() {
            return (value, position);
        }
        let followed = status.wait_for(|status| status.log.position >= position);
        followed.await.unwrap();
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Waits for requests to be prefilled after now.
async fn served(frontend: &Reference) {
    let sum = || -> u64 {
        let counts = frontend.counts();
        counts.iter().map(|one| one.counts.requests).sum()
    };
    let before = sum();
    while sum() <= before {
        tokio::task::yield_now().await;
    }
}

/// One life of a frontend: its model and its workers go and come back.
async fn live(frontend: &Arc<Reference>) -> Vec<Control> {
    let mut controls = Vec::new();
    let traffic = Traffic {
        requests_per_s: 200.0,
        ..Traffic::gentle(name("m"))
    };
    frontend.host(&plan()).unwrap();
    traffic.start(frontend);
    for turn in 0..TURNS {
        let routers = frontend.target().routers.list(None);
        controls.extend(routers.into_iter().map(|router| router.control));
        served(frontend).await;
        let worker = turn % 4;
        let role = ROLES[worker as usize / 2];
        assert!(frontend.remove_worker(&name("m"), worker).await);
        served(frontend).await;
        assert!(frontend.add_worker(&name("m"), role, worker));
        served(frontend).await;
        assert!(frontend.retire(&name("m")));
        frontend.host(&plan()).unwrap();
    }
    controls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_workers_and_frontends_that_come_and_go_leak_nothing_and_miss_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let log = Log::new(1);
    let metrics = tokio::runtime::Handle::current().metrics();
    let (mut frontends, mut controls): (Vec<Weak<Reference>>, Vec<Control>) = Default::default();
    // Blocking threads of the stores stay for a while: they are there before the count begins.
    let warm = Reference::new(Thresholds::default());
    assert!(
        agent_beside(folder.path(), &log, &warm.target())
            .await
            .stop()
            .await
            && warm.stop().await
    );
    drop(warm);
    let (tasks, before) = (metrics.num_alive_tasks(), threads());
    for round in 0..ROUNDS {
        let frontend = Reference::new(Thresholds::default());
        let agent = agent_beside(folder.path(), &log, &frontend.target()).await;
        let (stop, stopped) = watch::channel(false);
        let changes = stream(&log, &agent, stopped);
        let living = async {
            let controls = live(&frontend).await;
            stop.send_replace(true);
            controls
        };
        let (lived, (value, position)) = tokio::join!(living, changes);
        controls.extend(lived);
        until(&agent, "the last change on the last router", |status| {
            applied(status, None, position)
        })
        .await;
        let routers = frontend.target().routers.list(None);
        assert_eq!(routers.len(), ROLES.len(), "round {round}");
        for router in routers {
            let now = router.control.read(Duration::from_secs(10)).await;
            let now = now.unwrap().unwrap();
            assert_eq!(now.parameters.number("router_temperature"), value);
        }
        assert!(agent.stop().await && frontend.stop().await);
        frontends.push(Arc::downgrade(&frontend));
    }
    assert_eq!(controls.len(), (ROUNDS * TURNS) as usize * ROLES.len());
    let settled = async {
        let alive = || {
            metrics.num_alive_tasks() > tasks
                || threads() > before + 2
                || frontends.iter().any(|one| one.strong_count() > 0)
                || controls.iter().any(Control::is_live)
        };
        while alive() {
            tokio::task::yield_now().await;
        }
    };
    let settled = tokio::time::timeout(Duration::from_secs(20), settled).await;
    assert!(
        settled.is_ok(),
        "{} tasks ({tasks} before), {} threads ({before} before), {} frontends, {} schedulers",
        metrics.num_alive_tasks(),
        threads(),
        frontends
            .iter()
            .filter(|one| one.strong_count() > 0)
            .count(),
        controls.iter().filter(|one| one.is_live()).count(),
    );
}

#[tokio::test]
async fn a_model_that_is_retired_leaves_nothing_while_its_frontend_lives() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let frontend = Reference::new(Thresholds::default());
    let tasks = metrics.num_alive_tasks();
    let mut controls = Vec::new();
    for _ in 0..30 {
        frontend.host(&plan()).unwrap();
        let routers = frontend.target().routers.list(None);
        controls.extend(routers.into_iter().map(|router| router.control));
        let open = frontend.complete("m", &[7; 100], 1_000).await.unwrap();
        let workers = [open.placed.prefill_worker, open.placed.decode_worker];
        for (role, worker) in ROLES.into_iter().zip(workers) {
            assert!(frontend.remove_worker(&name("m"), worker).await);
            assert!(frontend.add_worker(&name("m"), role, worker));
        }
        // Still served when its model goes.
        let open = frontend.complete("m", &[7; 100], 1_000).await.unwrap();
        assert!(frontend.retire(&name("m")));
        drop(open);
    }
    let settled = async {
        while metrics.num_alive_tasks() > tasks || controls.iter().any(Control::is_live) {
            tokio::task::yield_now().await;
        }
    };
    let settled = tokio::time::timeout(Duration::from_secs(10), settled).await;
    let left = metrics.num_alive_tasks();
    assert!(settled.is_ok(), "{left} tasks, {tasks} before");
    assert_eq!(frontend.serving(), 0);
    assert!(frontend.target().models.list().is_empty());
    assert!(frontend.stop().await);
}
