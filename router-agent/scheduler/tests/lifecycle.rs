//! Routers that stall, callers that go away, routers that retire: each keeps its trouble to itself and nothing leaks.

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use scheduler::dynamo::{SequenceRequest, WorkerWithDpRank};
use scheduler::{Control, ReadError, Registry, UpdateError};
use schemas::{Revision, RouterId};
use tokio::task::JoinSet;
use uuid::Uuid;

use support::probe::{Watch, watched};
use support::{IMPATIENCE, PATIENCE, Router, key, query, router, set};

fn id(number: u128) -> RouterId {
    RouterId(Uuid::from_u128(number))
}

async fn stalled() -> (Router, Arc<Watch>, JoinSet<()>) {
    let (policy, watch) = watched();
    let router = router(policy, 2);
    watch.close();
    let scheduler = Arc::clone(&router.scheduler);
    let mut held = JoinSet::new();
    held.spawn(async move {
        scheduler.select_without_admission(query(16)).await.unwrap();
    });
    watch.reached(1).await;
    (router, watch, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stalled_scheduler_times_out_its_own_update_which_never_happens() {
    let (sick, watch, held) = stalled().await;
    let (policy, _) = watched();
    let healthy = router(policy, 2);

    let change = set("value", 7);
    let late = sick.control.update(Revision(0), &change, IMPATIENCE).await;
    assert_eq!(late, Err(UpdateError::TimedOut(IMPATIENCE)));
    assert_eq!(
        sick.control.read(IMPATIENCE).await,
        Err(ReadError::TimedOut(IMPATIENCE))
    );
    let well = healthy
        .control
        .update(Revision(0), &change, PATIENCE)
        .await
        .unwrap();
    assert_eq!(well.revision, Revision(1));

    watch.open();
    held.join_all().await;
    let now = sick.control.read(PATIENCE).await.unwrap().unwrap();
    assert_eq!(
        (now.revision, now.parameters.number("value")),
        (Revision(0), 0.0)
    );
    // The same change, at the same revision, is still to be had.
    let again = sick
        .control
        .update(Revision(0), &change, PATIENCE)
        .await
        .unwrap();
    assert_eq!(again.revision, Revision(1));
    assert_eq!(
        watch.alive(),
        1,
        "the policy of the change that never happened is gone too"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_update_whose_caller_went_away_is_skipped() {
    let (router, watch, held) = stalled().await;
    let change = set("value", 7);
    {
        let mut update = Box::pin(router.control.update(Revision(0), &change, PATIENCE));
        assert!(futures::poll!(update.as_mut()).is_pending());
        assert_eq!(watch.alive(), 2, "it was built and posted");
    }
    watch.open();
    held.join_all().await;
    router
        .scheduler
        .select_without_admission(query(16))
        .await
        .unwrap();
    assert_eq!(watch.last.load(Ordering::SeqCst), 0);
    assert_eq!(
        router
            .control
            .read(PATIENCE)
            .await
            .unwrap()
            .unwrap()
            .revision,
        Revision(0)
    );
    assert_eq!(watch.alive(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn deferred_cleanup_that_waits_together_with_an_update_is_done_once() {
    let (router, watch, held) = stalled().await;
    let book = |id: &str| {
        let request = SequenceRequest {
            request_id: id.to_owned(),
            token_sequence: Some(vec![1, 2, 3]),
            track_prefill_tokens: true,
            expected_output_tokens: None,
            prefill_load_hint: None,
            worker: WorkerWithDpRank::new(1, 0),
            lora_name: None,
        };
        router
            .scheduler
            .add_request_if_registered_guarded(request)
            .unwrap()
    };
    let (kept, dropped) = (book("kept"), book("dropped"));
    // Its cleanup waits for the actor, and so does the update behind it.
    drop(dropped);
    let change = set("value", 7);
    let mut update = Box::pin(router.control.update(Revision(0), &change, PATIENCE));
    assert!(futures::poll!(update.as_mut()).is_pending());
    watch.open();
    held.join_all().await;
    assert_eq!(update.await.unwrap().revision, Revision(1));
    while router.scheduler.has_request("dropped") {
        tokio::task::yield_now().await;
    }
    assert!(router.scheduler.has_request("kept"));
    drop(kept);
    while router.scheduler.has_request("kept") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn too_many_waiting_changes_are_refused_at_once() {
    let (router, watch, held) = stalled().await;
    let change = set("value", 7);
    let mut waiting = Vec::new();
    let crowded = loop {
        let mut update = Box::pin(router.control.update(Revision(0), &change, PATIENCE));
        match futures::poll!(update.as_mut()) {
            std::task::Poll::Pending => waiting.push(update),
            std::task::Poll::Ready(answer) => break answer,
        }
        assert!(waiting.len() <= 256, "no bound");
    };
    assert_eq!(crowded, Err(UpdateError::Crowded));
    watch.open();
    held.join_all().await;
    let answers = futures::future::join_all(waiting).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
    drop(router);
}

#[tokio::test]
async fn a_control_keeps_no_retired_scheduler_alive() {
    let (policy, watch) = watched();
    let router = router(policy, 2);
    let registry = Registry::new();
    let registration = registry.register(id(1), key("m"), router.control.clone());
    let control = router.control.clone();
    let scheduler = Arc::downgrade(&router.scheduler);
    assert!(control.is_live() && registry.find(id(1)).is_some());
    assert_eq!(registry.list(Some("other")).len(), 0);

    drop(router);
    assert!(scheduler.upgrade().is_none());
    while watch.alive() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(!control.is_live());
    assert_eq!(control.read(PATIENCE).await, Err(ReadError::Retired));
    let refused = control
        .update(Revision(0), &set("value", 1), PATIENCE)
        .await;
    assert_eq!(refused, Err(UpdateError::Retired));
    assert_eq!(
        (registry.list(None).len(), registry.find(id(1)).is_none()),
        (0, true)
    );
    drop(registration);
}

#[test]
fn old_policies_are_dropped_outside_of_the_scheduler() {
    let (policy, watch) = watched();
    let (give, take) = std::sync::mpsc::channel();
    let (done, wait) = tokio::sync::oneshot::channel();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    };
    let actor = std::thread::Builder::new()
        .name("actor".to_owned())
        .spawn(move || {
            runtime().block_on(async move {
                let router = router(policy, 2);
                give.send(router.control.clone()).unwrap();
                wait.await.unwrap();
            });
        });
    let control = take.recv().unwrap();
    let caller = std::thread::Builder::new()
        .name("caller".to_owned())
        .spawn(move || {
            runtime().block_on(async {
                for revision in 0..100 {
                    control
                        .update(Revision(revision), &set("value", revision), PATIENCE)
                        .await
                        .unwrap();
                }
            });
        });
    caller.unwrap().join().unwrap();
    let dropped = watch.dropped_on.lock().unwrap().clone();
    assert_eq!(dropped, vec!["caller"; 100]);
    done.send(()).unwrap();
    actor.unwrap().join().unwrap();
    assert_eq!(watch.alive(), 0);
}

/// Changes the router for as long as it is there.
async fn stream(control: Control) -> u64 {
    let mut applied = 0;
    loop {
        let revision = match control.read(PATIENCE).await {
            Ok(Some(now)) => now.revision,
            Ok(None) | Err(_) => return applied,
        };
        match control
            .update(revision, &set("value", applied), PATIENCE)
            .await
        {
            Ok(_) => applied += 1,
            Err(UpdateError::Retired) => return applied,
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn models_that_come_and_go_while_changes_stream_in_leak_nothing() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    let registry = Registry::new();
    let mut watches = Vec::new();
    for round in 0..100 {
        let (policy, watch) = watched();
        let router = router(policy, 2);
        let registration = registry.register(id(round), key("m"), router.control.clone());
        let mut writers = JoinSet::new();
        writers.spawn(stream(router.control.clone()));
        watch.picked.store(0, Ordering::SeqCst);
        router.workers.send_modify(|workers| {
            workers.remove(&0);
        });
        router
            .scheduler
            .select_without_admission(query(16))
            .await
            .unwrap();
        router.workers.send_modify(|workers| {
            workers.insert(0, Default::default());
        });
        while router
            .control
            .read(PATIENCE)
            .await
            .unwrap()
            .unwrap()
            .revision
            < Revision(3)
        {
            tokio::task::yield_now().await;
        }
        drop((registration, router));
        let applied: u64 = writers.join_all().await.into_iter().sum();
        assert!(applied >= 3, "{applied}");
        watches.push(watch);
    }
    assert!(registry.list(None).is_empty());
    let settled = async {
        while metrics.num_alive_tasks() > before || watches.iter().any(|watch| watch.alive() > 0) {
            tokio::task::yield_now().await;
        }
    };
    let patience = Duration::from_secs(10);
    assert!(
        tokio::time::timeout(patience, settled).await.is_ok(),
        "{} tasks, {} before; {} policies",
        metrics.num_alive_tasks(),
        before,
        watches.iter().map(|watch| watch.alive()).sum::<usize>()
    );
    assert!(
        watches.iter().all(|watch| Arc::strong_count(watch) == 1),
        "something holds a policy's parts"
    );
}
