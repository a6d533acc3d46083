//! Busy thresholds gate through Dynamo's own scheduler: its bookings are the load, its selections are refused.

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod support;

use std::collections::BTreeSet;

use scheduler::builtin::{BuiltIn, Startup};
use scheduler::busy::{Models, Overloaded, Thresholds};
use scheduler::dynamo::{KvSchedulerError, ScheduleMode, plain_request};
use schemas::WorkerType;

use support::{Router, Worker, router_with, tracked};

fn prefill_tokens(threshold: u64) -> Thresholds {
    Thresholds {
        active_prefill_tokens_threshold: Some(threshold),
        ..Thresholds::default()
    }
}

fn started(models: &Models, worker_type: WorkerType) -> Router {
    let policy = BuiltIn::policy(&Startup::of(worker_type)).unwrap();
    router_with(
        policy,
        worker_type,
        2,
        None,
        models.discover("m", worker_type.as_str()),
    )
}

async fn book(router: &Router, id: &str, tokens: usize) -> Result<u64, KvSchedulerError> {
    let mut request = tracked(id, tokens);
    let blocks = tokens as u64 / u64::from(support::BLOCK_SIZE);
    request.token_seq = Some(
        (0..blocks)
            .map(|block| block + 1_000 * tokens as u64)
            .collect(),
    );
    let answer = router.scheduler.schedule_request(request).await?;
    Ok(answer.best_worker.worker_id)
}

#[tokio::test]
async fn a_model_refuses_when_every_worker_is_past_its_thresholds_until_load_falls() {
    let models = Models::new(prefill_tokens(100));
    let router = started(&models, WorkerType::Aggregated);
    let first = book(&router, "a", 160).await.unwrap();
    assert_eq!(models.gate("m"), Ok(()));
    assert_eq!(router.busy.overloaded(), Some([first].into()));
    let second = book(&router, "b", 176).await.unwrap();
    assert_ne!(first, second, "the busy worker gets nothing");
    assert_eq!(models.gate("m"), Err(Overloaded("m".to_owned())));
    let refused = book(&router, "c", 16).await.unwrap_err();
    assert!(refused.is_overload(), "{refused}");

    router.scheduler.mark_prefill_completed("a").await.unwrap();
    assert_eq!(models.gate("m"), Ok(()));
    assert_eq!(book(&router, "d", 16).await.unwrap(), first);
    router.scheduler.free("b").await.unwrap();
    assert_eq!(router.busy.overloaded(), None);
}

#[tokio::test]
async fn a_decode_threshold_counts_the_schedulers_own_blocks() {
    let models = Models::default();
    let router = started(&models, WorkerType::Aggregated);
    router.workers.send_modify(|workers| {
        for worker in workers.values_mut() {
            *worker = Worker {
                kv_blocks: 20,
                ..Worker::default()
            };
        }
    });
    let half = Thresholds {
        active_decode_blocks_threshold: Some(0.5),
        ..Thresholds::default()
    };
    models.set("m", &half).unwrap();
    let ids = ["a", "b"];
    let mut placed = BTreeSet::new();
    for (at, id) in ids.iter().enumerate() {
        assert_eq!(models.gate("m"), Ok(()), "before {id}");
        placed.insert(book(&router, id, 16 * (11 + at)).await.unwrap());
    }
    assert_eq!(placed.len(), 2);
    assert!(models.gate("m").is_err());
    // Prefill done changes nothing: the blocks are still held.
    router.scheduler.mark_prefill_completed("a").await.unwrap();
    assert!(models.gate("m").is_err());
    router.scheduler.free("a").await.unwrap();
    assert!(models.gate("m").is_ok());
}

#[tokio::test]
async fn worker_sets_of_a_model_are_judged_together_and_listed_once() {
    let models = Models::new(prefill_tokens(10));
    let prefill = started(&models, WorkerType::Prefill);
    let decode = started(&models, WorkerType::Decode);
    for id in ["a", "b"] {
        book(&prefill, id, 16).await.unwrap();
    }
    let refused = book(&prefill, "c", 16).await.unwrap_err();
    assert!(refused.is_overload());
    assert!(models.gate("m").is_ok(), "decode workers are free");
    decode
        .scheduler
        .select_without_admission(plain_request(
            ScheduleMode::QueryOnly { request_id: None },
            16,
        ))
        .await
        .unwrap();
    let listed: Vec<String> = models.list().into_iter().map(|(model, _)| model).collect();
    assert_eq!(listed, ["m"]);
}

#[tokio::test]
async fn a_removed_worker_no_longer_counts() {
    let models = Models::new(prefill_tokens(10));
    let router = started(&models, WorkerType::Aggregated);
    let first = book(&router, "a", 160).await.unwrap();
    router
        .workers
        .send_modify(|workers| workers.retain(|id, _| *id == first));
    assert!(models.gate("m").is_err(), "the only worker left is busy");
    router.workers.send_modify(|workers| {
        workers.insert(77, Worker::default());
    });
    assert!(models.gate("m").is_ok(), "a new worker has no load");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regression_workers_that_change_during_selections_do_not_deadlock_the_scheduler() {
    let models = Models::new(prefill_tokens(1_000_000));
    let router = started(&models, WorkerType::Aggregated);
    let sender = router.workers.clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let changes = std::thread::spawn(move || {
        let mut changes = 0_u64;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            sender.send_modify(|workers| {
                workers.insert(5 + changes % 2, Worker::default());
                workers.remove(&(6 - changes % 2));
            });
            changes += 1;
        }
        changes
    });
    let selections = async {
        for _ in 0..5_000 {
            let request = plain_request(ScheduleMode::QueryOnly { request_id: None }, 16);
            router
                .scheduler
                .select_without_admission(request)
                .await
                .unwrap();
            assert!(models.gate("m").is_ok());
        }
    };
    let finished = tokio::time::timeout(support::PATIENCE, selections).await;
    drop(stop);
    assert!(finished.is_ok(), "the scheduler hangs");
    assert!(changes.join().unwrap() > 0);
}
