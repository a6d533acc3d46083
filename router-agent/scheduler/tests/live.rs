//! Changes while Dynamo's own scheduler works: they take effect at once, one at a time, and touch nothing else.

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use scheduler::builtin::{BuiltIn, Startup};
use scheduler::busy::Models;
use scheduler::dynamo::{KvSchedulerError, SchedulingResponse};
use scheduler::{Control, UpdateError};
use schemas::{Revision, WorkerType};
use tokio::task::JoinSet;

use support::probe::watched;
use support::{PATIENCE, Router, query, query_with_overlap, router, router_with, set, tracked};

fn built_in(worker_type: WorkerType) -> scheduler::Policy {
    BuiltIn::policy(&Startup::of(worker_type)).unwrap()
}

async fn select(router: &Router, tokens: usize) -> SchedulingResponse {
    router
        .scheduler
        .select_without_admission(query(tokens))
        .await
        .unwrap()
        .response
}

#[tokio::test]
async fn an_idle_router_reports_the_new_revision_at_once_and_the_next_selection_uses_it() {
    let (policy, watch) = watched();
    let router = router(policy, 2);
    for revision in 0..5 {
        let value = 10 * (revision + 1);
        let now = router
            .control
            .update(Revision(revision), &set("value", value), PATIENCE)
            .await
            .unwrap();
        assert_eq!(now.revision, Revision(revision + 1));
        assert_eq!(router.control.read(PATIENCE).await, Ok(Some(now)));
        assert_eq!(
            watch.picked.load(Ordering::SeqCst),
            revision as usize,
            "an update is no selection"
        );
        select(&router, 16).await;
        assert_eq!(watch.last.load(Ordering::SeqCst), value as usize);
    }
    assert_eq!(watch.alive(), 1, "old policies are gone");
}

#[tokio::test]
async fn overlap_credit_and_temperature_act_on_the_next_request() {
    let router = router(built_in(WorkerType::Aggregated), 8);
    let warm = || query_with_overlap(160, &[(3, 10)]);
    let share = async || {
        let mut at_warm = 0;
        for _ in 0..200 {
            let picked = router
                .scheduler
                .select_without_admission(warm())
                .await
                .unwrap();
            at_warm += usize::from(picked.response.best_worker.worker_id == 3);
        }
        at_warm
    };
    assert_eq!(share().await, 200, "the worker that holds the prompt");
    let hot = set("router_temperature", 1e6);
    router
        .control
        .update(Revision(0), &hot, PATIENCE)
        .await
        .unwrap();
    let spread = share().await;
    assert!(
        (1..=80).contains(&spread),
        "{spread} of 200 with one in eight expected"
    );
    let back = scheduler::Change::Reset;
    router
        .control
        .update(Revision(1), &back, PATIENCE)
        .await
        .unwrap();
    assert_eq!(share().await, 200);
}

/// Writes at whatever revision it reads, so that many write at the same one.
async fn write(control: Control, writer: u64, rounds: usize) -> Vec<u64> {
    let mut won = Vec::new();
    for round in 0..rounds {
        let now = control.read(PATIENCE).await.unwrap().unwrap();
        let value = writer * 1_000 + round as u64;
        match control
            .update(now.revision, &set("value", value), PATIENCE)
            .await
        {
            Ok(next) => {
                assert_eq!(next.revision, now.revision.next());
                assert_eq!(next.parameters.number("value"), value as f64);
                won.push(next.revision.0);
            }
            Err(UpdateError::Conflict { expected, current }) => assert!(current > expected),
            Err(other) => panic!("{other}"),
        }
    }
    won
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_racing_writers_win_each_revision_exactly_once() {
    let (policy, watch) = watched();
    let router = router(policy, 4);
    let mut writers = JoinSet::new();
    for writer in 0..50 {
        writers.spawn(write(router.control.clone(), writer, 20));
    }
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        let scheduler = Arc::clone(&router.scheduler);
        readers.spawn(async move {
            for _ in 0..500 {
                scheduler.select_without_admission(query(16)).await.unwrap();
            }
        });
    }
    let mut won: Vec<u64> = writers.join_all().await.into_iter().flatten().collect();
    readers.join_all().await;
    won.sort_unstable();
    let last = router
        .control
        .read(PATIENCE)
        .await
        .unwrap()
        .unwrap()
        .revision;
    assert_eq!(
        won,
        (1..=last.0).collect::<Vec<u64>>(),
        "one winner per revision"
    );
    assert!(!won.is_empty());
    assert_eq!(
        watch.mixed.load(Ordering::SeqCst),
        0,
        "a selection saw two policies"
    );
    assert_eq!(watch.picked.load(Ordering::SeqCst), 2_000);
    assert_eq!(watch.alive(), 1);
}

#[tokio::test]
async fn sixty_four_patches_at_one_revision_have_one_winner() {
    let router = router(built_in(WorkerType::Aggregated), 4);
    let change = set("router_temperature", 0.5);
    let patches = (0..64).map(|_| router.control.update(Revision(0), &change, PATIENCE));
    let answers = futures::future::join_all(patches).await;
    let won = answers.iter().filter(|answer| answer.is_ok()).count();
    let lost = UpdateError::Conflict {
        expected: 0,
        current: 1,
    };
    let conflicts = answers
        .iter()
        .filter(|answer| answer.as_ref() == Err(&lost))
        .count();
    assert_eq!((won, conflicts), (1, 63));
}

type Answers = JoinSet<(usize, Result<SchedulingResponse, KvSchedulerError>)>;

/// Eight bookings, one per worker, and three requests that wait.
async fn loaded(router: &Router) -> Answers {
    for id in 0..8 {
        router
            .scheduler
            .schedule_request(tracked(&format!("booked-{id}"), 64))
            .await
            .unwrap();
    }
    let mut waiting = JoinSet::new();
    for id in 0..3 {
        let scheduler = Arc::clone(&router.scheduler);
        waiting.spawn(async move {
            (
                id,
                scheduler
                    .schedule_request(tracked(&format!("waiting-{id}"), 100 + id))
                    .await,
            )
        });
        while router.scheduler.pending_count() <= id {
            tokio::task::yield_now().await;
        }
    }
    waiting
}

/// Loads by worker, requests and tokens that wait, and which bookings there are.
type Books = (Vec<(u64, usize, usize, usize)>, usize, usize, Vec<bool>);

/// Everything that the scheduler tells about bookings and its queue.
fn books(router: &Router) -> Books {
    let loads = router
        .scheduler
        .get_potential_loads(None, 0, Default::default(), true);
    let mut loads: Vec<_> = loads
        .iter()
        .map(|load| {
            (
                load.worker_id,
                load.potential_prefill_tokens,
                load.potential_decode_blocks,
                load.active_requests,
            )
        })
        .collect();
    loads.sort_unstable();
    let booked = (0..8)
        .map(|id| router.scheduler.has_request(&format!("booked-{id}")))
        .collect();
    (
        loads,
        router.scheduler.pending_count(),
        router.scheduler.pending_isl_tokens(),
        booked,
    )
}

#[tokio::test]
async fn a_thousand_updates_under_load_leave_bookings_and_queue_as_they_were() {
    let busy = Models::default().discover("m", "set");
    let policy = built_in(WorkerType::Aggregated);
    let router = router_with(policy, WorkerType::Aggregated, 8, Some(0.0), busy);
    let mut waiting = loaded(&router).await;
    let before = books(&router);
    assert_eq!((before.0.len(), before.1, before.2), (8, 3, 303));
    for revision in 0..1_000 {
        let change = set("router_temperature", (revision % 7) as f64);
        router
            .control
            .update(Revision(revision), &change, PATIENCE)
            .await
            .unwrap();
        select(&router, 64).await;
    }
    assert_eq!(books(&router), before);
    let now = router.control.read(PATIENCE).await.unwrap().unwrap();
    assert_eq!(now.revision, Revision(1_000));
    for id in 0..8 {
        router
            .scheduler
            .free(&format!("booked-{id}"))
            .await
            .unwrap();
    }
    while let Some(answer) = waiting.join_next().await {
        let (id, answer) = answer.unwrap();
        answer.unwrap();
        router
            .scheduler
            .free(&format!("waiting-{id}"))
            .await
            .unwrap();
    }
    let after = books(&router);
    assert_eq!((after.1, after.2), (0, 0));
    assert!(after.0.iter().all(|load| load.3 == 0), "{after:?}");
}
