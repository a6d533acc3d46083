//! Rules of the thresholds, by load event.

use std::sync::Arc;

use super::*;
use crate::dynamo::WorkerId;

fn worker(id: WorkerId, ranks: u32) -> Capacity {
    Capacity {
        worker: id,
        first_rank: 0,
        ranks,
        total_kv_blocks: Some(100),
        max_num_batched_tokens: Some(1000),
    }
}

fn decode(active: Option<u64>, used: Option<u64>) -> Load {
    Load {
        worker: 1,
        active_decode_blocks: active,
        kv_used_blocks: used,
        ..Load::default()
    }
}

fn prefill(worker: WorkerId, rank: u32, tokens: u64) -> Load {
    Load {
        worker,
        rank,
        active_prefill_tokens: Some(tokens),
        ..Load::default()
    }
}

fn set(thresholds: Thresholds, workers: &[Capacity]) -> (Models, Arc<WorkerSet>) {
    let models = Models::new(thresholds);
    let set = models.discover("m", "a");
    set.configure(workers);
    (models, set)
}

fn busy_by_decode() -> Thresholds {
    Thresholds {
        active_decode_blocks_threshold: Some(0.5),
        ..Thresholds::default()
    }
}

#[test]
fn a_load_must_be_strictly_greater() {
    let cases = [
        (busy_by_decode(), decode(Some(50), None), false),
        (busy_by_decode(), decode(Some(51), None), true),
        (busy_by_decode(), decode(None, Some(51)), true),
        (
            Thresholds {
                active_prefill_tokens_threshold: Some(0),
                ..Thresholds::default()
            },
            prefill(1, 0, 0),
            false,
        ),
        (
            Thresholds {
                active_prefill_tokens_threshold: Some(0),
                ..Thresholds::default()
            },
            prefill(1, 0, 1),
            true,
        ),
        (
            Thresholds {
                active_prefill_tokens_threshold_frac: Some(0.5),
                ..Thresholds::default()
            },
            prefill(1, 0, 500),
            false,
        ),
        (
            Thresholds {
                active_prefill_tokens_threshold_frac: Some(0.5),
                ..Thresholds::default()
            },
            prefill(1, 0, 501),
            true,
        ),
        (Thresholds::default(), prefill(1, 0, u64::MAX), false),
    ];
    for (thresholds, load, busy) in cases {
        let (models, set) = set(thresholds, &[worker(1, 1)]);
        set.observe(&load);
        assert_eq!(models.gate("m").is_err(), busy, "{thresholds:?} {load:?}");
        assert_eq!(set.overloaded().is_some(), busy);
    }
}

#[test]
fn decode_stays_latched_until_both_signals_are_below() {
    let (models, set) = set(busy_by_decode(), &[worker(1, 1)]);
    let steps = [
        (decode(Some(60), Some(60)), true),
        (decode(Some(10), None), true),
        (decode(None, Some(60)), true),
        (decode(None, Some(10)), false),
        (decode(Some(10), Some(60)), true),
        (decode(None, Some(50)), false),
    ];
    for (at, (load, busy)) in steps.into_iter().enumerate() {
        set.observe(&load);
        assert_eq!(models.gate("m").is_err(), busy, "step {at}");
    }
}

#[test]
fn a_worker_is_busy_when_all_ranks_are_and_a_model_when_all_workers_are() {
    let thresholds = Thresholds {
        active_prefill_tokens_threshold: Some(10),
        ..Thresholds::default()
    };
    let (models, first) = set(thresholds, &[worker(1, 2), worker(2, 1)]);
    let second = models.discover("m", "b");
    second.configure(&[worker(9, 1)]);
    let steps = [
        (&first, prefill(1, 0, 11), None, false),
        (&first, prefill(1, 1, 11), Some(vec![1]), false),
        (&first, prefill(2, 0, 11), Some(vec![1, 2]), false),
        (&second, prefill(9, 0, 11), Some(vec![1, 2]), true),
        (&first, prefill(1, 1, 10), Some(vec![2]), false),
    ];
    for (at, (set, load, busy, refused)) in steps.into_iter().enumerate() {
        set.observe(&load);
        let overloaded = first.overloaded().map(|set| {
            let mut ids: Vec<WorkerId> = set.into_iter().collect();
            ids.sort_unstable();
            ids
        });
        assert_eq!(overloaded, busy, "step {at}");
        assert_eq!(models.gate("m").is_err(), refused, "step {at}");
    }
    drop(second);
    assert!(
        models.gate("m").is_ok(),
        "a set that is gone judges no longer"
    );
}

#[test]
fn a_new_threshold_acts_at_the_next_load_event() {
    let (models, set) = set(Thresholds::default(), &[worker(1, 1)]);
    set.observe(&prefill(1, 0, 5));
    let some = Thresholds {
        active_prefill_tokens_threshold: Some(4),
        ..Thresholds::default()
    };
    assert_eq!(models.set("m", &some), Ok(some));
    assert!(models.gate("m").is_ok());
    set.observe(&prefill(1, 0, 5));
    assert_eq!(models.gate("m"), Err(Overloaded("m".to_owned())));
    assert_eq!(
        models.set("nope", &some),
        Err(UnknownModel("nope".to_owned()))
    );
}

#[test]
fn workers_that_leave_are_forgotten_and_new_sets_start_from_startup_values() {
    let (models, set) = set(busy_by_decode(), &[worker(1, 1)]);
    set.observe(&decode(Some(60), None));
    assert!(set.overloaded().is_some());
    set.configure(&[worker(2, 1)]);
    assert!(set.overloaded().is_none());
    let changed = Thresholds {
        active_decode_blocks_threshold: Some(0.9),
        ..Thresholds::default()
    };
    assert_eq!(models.set("m", &changed), Ok(changed));
    drop(set);
    assert_eq!(models.read("m"), None);
    let _again = models.discover("m", "a");
    assert_eq!(models.read("m"), Some(busy_by_decode()));
}
